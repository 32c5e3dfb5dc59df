# One PEG whose random initial kernel is never trained.
_base_ = '../_base_/classifier.py'
model = dict(backbone=dict(position=dict(frozen=True)))
