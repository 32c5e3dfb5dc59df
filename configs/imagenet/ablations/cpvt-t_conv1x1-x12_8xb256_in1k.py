# No neighbourhood: a 1 x 1 convolution before each of the twelve blocks.
_base_ = '../cpvt-t_8xb256_in1k.py'
model = dict(
    backbone=dict(position=dict(after_blocks=(-1, *range(11)), kernel_size=1, kind='separable'))
)
