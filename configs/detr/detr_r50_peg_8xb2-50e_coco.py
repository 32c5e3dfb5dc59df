# PEG after the encoder's first layer, with BatchNorm, ReLU and without bias, in place of the
# encoder's sine encoding.
_base_ = './detr_r50_8xb2-50e_coco.py'
model = dict(
    type='DETRWithPEG',
    encoder=dict(peg=dict(after_blocks=(0,), kernel_size=3, bias=False, norm='BN', act='ReLU')),
)
optim_wrapper = dict(paramwise_cfg=dict(custom_keys={'pos_block': dict(decay_mult=0.0)}))
