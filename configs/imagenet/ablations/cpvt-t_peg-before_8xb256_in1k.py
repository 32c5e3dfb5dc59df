# PEG at -1: before the first block.
_base_ = '../cpvt-t_8xb256_in1k.py'
model = dict(backbone=dict(position=dict(after_blocks=(-1,))))
