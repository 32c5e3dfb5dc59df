# DeepSpeed ZeRO-2 in bf16.
_base_ = ['./retinanet_multiscale-cpvt-b_fpn_1x_coco.py', '../_base_/options/deepspeed.py']
optim_wrapper = dict(type='DeepSpeedOptimWrapper')
