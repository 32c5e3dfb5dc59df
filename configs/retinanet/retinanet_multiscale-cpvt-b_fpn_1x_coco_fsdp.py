# Sharded over the GPUs, in bf16, with activation checkpointing: for GPUs that CPVT-B does not fit.
_base_ = ['./retinanet_multiscale-cpvt-b_fpn_1x_coco.py', '../_base_/options/fsdp.py']
model = dict(backbone=dict(with_cp=True))
optim_wrapper = dict(type='AmpOptimWrapper', dtype='bfloat16', use_fsdp=True)
