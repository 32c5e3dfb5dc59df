# DINOv3's rotary encoding, coordinates rescaled at random in training.
_base_ = '../_base_/classifier.py'
model = dict(
    backbone=dict(position=dict(_delete_=True, type='RoPE', mode='dinov3', rescale_coords=2.0))
)
