# CPVT-Ti-GAP‡, hard-distilled: without tokens of their own, both heads read the pooled vector.
_base_ = './cpvt-t_peg0-5_distilled_8xb256_in1k.py'
model = dict(backbone=dict(with_cls_token=False, with_dist_token=False, out_type='avg_featmap'))
