# Four convolutions in a row after block 0.
_base_ = '../_base_/classifier.py'
model = dict(backbone=dict(position=dict(num_layers=4)))
