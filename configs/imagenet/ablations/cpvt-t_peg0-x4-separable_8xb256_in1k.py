# Four separable convolutions in a row after block 0: 4 (d^2 + k^2 d) weights.
_base_ = '../cpvt-t_8xb256_in1k.py'
model = dict(backbone=dict(position=dict(num_layers=4, kind='separable')))
