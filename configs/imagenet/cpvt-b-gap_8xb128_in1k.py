# CPVT-B-GAP: no class token, mean over the tokens.
_base_ = './cpvt-b_8xb128_in1k.py'
model = dict(backbone=dict(with_cls_token=False, out_type='avg_featmap'))
