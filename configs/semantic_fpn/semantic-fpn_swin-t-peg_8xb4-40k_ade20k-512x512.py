# The same with a PEG after the first block of each stage, as in Twins-PCPVT; step 0 is the
# pretrained Swin-T.
_base_ = './semantic-fpn_swin-t_8xb4-40k_ade20k-512x512.py'
after = [f'stages.{stage}.blocks.0' for stage in range(4)]
model = dict(
    backbone=dict(_delete_=True, type='WithPEG', backbone=_base_.model.backbone, after=after)
)
