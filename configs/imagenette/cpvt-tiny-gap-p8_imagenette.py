# Patches of 8 px: at 112 px the tokens, and the cost, of the model below at 224 px.
_base_ = './cpvt-tiny-gap_imagenette.py'
model = dict(backbone=dict(patch_size=8))
