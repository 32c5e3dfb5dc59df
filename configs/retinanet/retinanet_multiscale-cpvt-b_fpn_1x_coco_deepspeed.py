# DeepSpeed ZeRO-2 in bf16. Its optimizer wrapper takes no clip_grad: the clipping is the
# strategy's.
_base_ = ['./retinanet_multiscale-cpvt-b_fpn_1x_coco.py', '../_base_/options/deepspeed.py']
optim_wrapper = dict(
    _delete_=True,
    type='DeepSpeedOptimWrapper',
    constructor={{_base_.optim_wrapper.constructor}},
    optimizer={{_base_.optim_wrapper.optimizer}},
    paramwise_cfg={{_base_.optim_wrapper.paramwise_cfg}},
)
