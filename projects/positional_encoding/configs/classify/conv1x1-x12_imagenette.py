# No neighbourhood: twelve 1 x 1 convolutions, two before each block.
_base_ = '../_base_/classifier.py'
model = dict(
    backbone=dict(
        position=dict(
            after_blocks=(-1, 0, 1, 2, 3, 4), kernel_size=1, num_layers=2, kind='separable'
        )
    )
)
