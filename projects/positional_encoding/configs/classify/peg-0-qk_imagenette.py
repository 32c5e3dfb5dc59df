# One PEG, seen by the queries and keys of the next block only.
_base_ = '../_base_/classifier.py'
model = dict(backbone=dict(position=dict(target='qk')))
