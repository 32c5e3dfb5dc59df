# PEG at 0 for the queries and keys of block 1 only.
_base_ = '../cpvt-t_8xb256_in1k.py'
model = dict(backbone=dict(position=dict(target='qk')))
