# PEG at -1 with a kernel of 9 x 9.
_base_ = '../cpvt-t_8xb256_in1k.py'
model = dict(backbone=dict(position=dict(after_blocks=(-1,), kernel_size=9)))
