# The same with a PEG after the first block of each stage.
_base_ = './semantic-fpn_swin_camvid.py'
after = [f'stages.{stage}.blocks.0' for stage in range(4)]
model = dict(backbone=dict(_delete_=True, type='WithPEG', backbone=_base_.backbone, after=after))
