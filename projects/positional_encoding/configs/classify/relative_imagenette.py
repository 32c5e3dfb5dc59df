# Learned relative positions, clipped at 8 tokens.
_base_ = '../_base_/classifier.py'
model = dict(backbone=dict(position=dict(_delete_=True, type='Relative', clip=8)))
