# The paper's "-1": PEG before the first block.
_base_ = '../_base_/classifier.py'
model = dict(backbone=dict(position=dict(after_blocks=(-1,))))
