# No neighbourhood: twelve 1 x 1 convolutions in a row after block 0.
_base_ = '../cpvt-t_8xb256_in1k.py'
model = dict(backbone=dict(position=dict(num_layers=12, kernel_size=1, kind='separable')))
