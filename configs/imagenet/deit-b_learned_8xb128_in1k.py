# DeiT-B with a learned table (DeiT itself): a row that CPVT is compared with.
_base_ = './cpvt-b_8xb128_in1k.py'
model = dict(backbone=dict(position=dict(_delete_=True, type='Learned')))
