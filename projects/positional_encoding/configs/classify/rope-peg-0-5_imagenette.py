# Rotary encoding, and a PEG after each of the first five blocks.
_base_ = '../_base_/classifier.py'
model = dict(backbone=dict(position=[dict(type='RoPE'), dict(type='PEG', after_blocks='0-5')]))
