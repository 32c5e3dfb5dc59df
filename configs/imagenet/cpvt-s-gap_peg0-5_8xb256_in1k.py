# CPVT-S-GAP‡: no class token, mean over the tokens; one PEG after each of the first five blocks.
_base_ = './cpvt-s_peg0-5_8xb256_in1k.py'
model = dict(backbone=dict(with_cls_token=False, out_type='avg_featmap'))
