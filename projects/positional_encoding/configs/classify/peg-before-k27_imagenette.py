# The paper's "-1" with a kernel of 27.
_base_ = '../_base_/classifier.py'
model = dict(backbone=dict(position=dict(after_blocks=(-1,), kernel_size=27)))
