# CPVT-S as the paper's default: class token, one PEG after block 0; the recipe of CPVT-Ti.
_base_ = './cpvt-t_8xb256_in1k.py'
model = dict(backbone=dict(arch='small'), head=dict(in_channels=384))
