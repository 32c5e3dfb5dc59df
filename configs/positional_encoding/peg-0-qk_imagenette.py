# One PEG, seen by the queries and keys of the next block only.
_base_ = '../_base_/studies/positional_encoding.py'
model = dict(backbone=dict(position=dict(target='qk')))
