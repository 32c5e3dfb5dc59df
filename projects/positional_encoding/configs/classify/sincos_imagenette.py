# Fixed sines and cosines, computed for the grid.
_base_ = '../_base_/classifier.py'
model = dict(backbone=dict(position=dict(_delete_=True, type='SinCos')))
