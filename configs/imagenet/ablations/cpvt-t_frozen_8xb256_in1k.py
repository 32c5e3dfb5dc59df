# PEG at 0 with a random kernel that is never trained.
_base_ = '../cpvt-t_8xb256_in1k.py'
model = dict(backbone=dict(position=dict(frozen=True)))
