_base_ = './upernet_multiscale-cpvt-s_8xb2-160k_ade20k-512x512.py'
model = dict(
    backbone=dict(arch='tiny'), decode_head=dict(in_channels=[192, 192, 192, 192]), auxiliary_head=dict(in_channels=192)
)
