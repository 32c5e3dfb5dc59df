# DeiT-Ti, hard-distilled: the row that the distilled CPVT-Ti is compared with.
_base_ = './cpvt-t_peg0-5_distilled_8xb256_in1k.py'
model = dict(backbone=dict(position=dict(_delete_=True, type='Learned')))
