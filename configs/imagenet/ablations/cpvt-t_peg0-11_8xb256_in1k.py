# "0-11": one PEG after each of the first eleven blocks.
_base_ = '../cpvt-t_8xb256_in1k.py'
model = dict(backbone=dict(position=dict(after_blocks='0-11')))
