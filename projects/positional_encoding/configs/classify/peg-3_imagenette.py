# One PEG after block 3.
_base_ = '../_base_/classifier.py'
model = dict(backbone=dict(position=dict(after_blocks=(3,))))
