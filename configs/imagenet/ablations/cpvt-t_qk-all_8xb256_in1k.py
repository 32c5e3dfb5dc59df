# A PEG for the queries and keys of each of blocks 1 to 11.
_base_ = '../cpvt-t_8xb256_in1k.py'
model = dict(backbone=dict(position=dict(target='qk', after_blocks=tuple(range(11)))))
