# PEG at 3: after block 3.
_base_ = '../cpvt-t_8xb256_in1k.py'
model = dict(backbone=dict(position=dict(after_blocks=(3,))))
