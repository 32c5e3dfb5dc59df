# Patches of 8 px: four times the tokens at the same image size, for poles, signs, fences and
# pedestrians. The trunk is that of the shipped segmentor; its patch embedding is fitted to the
# smaller patches as it is loaded.
_base_ = './semantic-fpn_cpvt-tiny-gap_camvid-trainval.py'
model = dict(
    backbone=dict(patch_size=8, init_cfg=dict(checkpoint='semantic_fpn_cpvt_tiny_gap-camvid')),
    neck=dict(in_channels=[96, 192, 192, 192]),
)
