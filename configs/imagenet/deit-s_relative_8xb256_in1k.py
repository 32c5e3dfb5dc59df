# DeiT-S with a 2D relative encoding, clipped at 8: a row that CPVT is compared with.
_base_ = './cpvt-s_8xb256_in1k.py'
model = dict(backbone=dict(position=dict(_delete_=True, type='Relative', clip=8)))
