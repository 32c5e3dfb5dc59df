# The paper's "0-5": a PEG after each of the first five blocks.
_base_ = '../_base_/classifier.py'
model = dict(backbone=dict(position=dict(after_blocks=(0, 1, 2, 3, 4))))
