# The recipe of all classifiers: a third-width, half-depth DeiT-Ti. The configs in ../classify
# change the position encoding, the class token, or the loss alone.
_base_ = '../../../../configs/_base_/recipes/imagenette_112px.py'
model = dict(
    backbone=dict(
        arch=dict(embed_dims=128, depth=6, num_heads=4, mlp_ratio=4),
        out_type='cls_token',
        position=dict(type='PEG', after_blocks=(0,), kernel_size=3),
    ),
    head=dict(in_channels=128),
)
