# Rotary encoding with learned frequencies (RoPE-ViT, arXiv 2403.13298).
_base_ = '../_base_/classifier.py'
model = dict(backbone=dict(position=dict(_delete_=True, type='RoPE', mode='mixed')))
