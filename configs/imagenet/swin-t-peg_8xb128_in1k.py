# Swin-T with a PEG after the first block of each stage.
_base_ = './swin-t_8xb128_in1k.py'
after = [f'stages.{stage}.blocks.0' for stage in range(4)]
model = dict(
    backbone=dict(_delete_=True, type='WithPEG', backbone=_base_.model.backbone, after=after)
)
