# DeiT's learned table, resized bicubically to other grids.
_base_ = '../_base_/classifier.py'
model = dict(backbone=dict(position=dict(_delete_=True, type='Learned')))
