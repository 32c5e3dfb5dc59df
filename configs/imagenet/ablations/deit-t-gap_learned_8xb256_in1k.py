# A learned table, the mean of the tokens instead of a class token: CPVT-GAP's gain without PEG.
_base_ = '../deit-t_learned_8xb256_in1k.py'
model = dict(backbone=dict(with_cls_token=False, out_type='avg_featmap'))
