# Fully sharded data parallel, by mmengine's FlexibleRunner: parameters, gradients and optimizer
# state are split among the GPUs, one unit a transformer block. Original parameters are kept,
# because weight decay differs between them. Checkpoints are whole, as those of any other run. No
# clip_grad with it: mmengine would clip by the norm of each GPU's own part.
strategy = dict(
    type='ResumableFSDPStrategy',
    model_wrapper=dict(use_orig_params=True, auto_wrap_policy='wrap_blocks'),
    state_dict_cfg='full',
)
