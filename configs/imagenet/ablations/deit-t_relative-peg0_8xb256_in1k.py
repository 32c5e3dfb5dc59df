# A relative encoding and one PEG.
_base_ = '../cpvt-t_8xb256_in1k.py'
model = dict(
    backbone=dict(
        position=[
            dict(type='Relative', clip=8),
            dict(type='PEG', after_blocks=(0,), kernel_size=3),
        ]
    )
)
