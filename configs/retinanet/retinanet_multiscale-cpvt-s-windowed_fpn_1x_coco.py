# Windows of 14 x 14 tokens (224 px, the pre-training size); the last block of each quarter attends
# to all tokens.
_base_ = './retinanet_multiscale-cpvt-s_fpn_1x_coco.py'
model = dict(backbone=dict(window_size=14, global_blocks=(2, 5, 8, 11)))
