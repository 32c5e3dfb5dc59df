# A learned table, the mean of the tokens instead of a class token.
_base_ = '../_base_/classifier.py'
model = dict(
    backbone=dict(
        with_cls_token=False, out_type='avg_featmap', position=dict(_delete_=True, type='Learned')
    )
)
