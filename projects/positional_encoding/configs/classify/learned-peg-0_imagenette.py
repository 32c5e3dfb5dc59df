# A learned table and one PEG.
_base_ = '../_base_/classifier.py'
model = dict(
    backbone=dict(
        position=[dict(type='Learned'), dict(type='PEG', after_blocks=(0,), kernel_size=3)]
    )
)
