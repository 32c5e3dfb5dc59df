# Fully sharded data parallel, on mmengine's FlexibleRunner: parameters, gradients and optimizer state are split among the
# GPUs, in units of a million parameters. Original parameters are kept, because weight decay differs between them.
runner_type = 'FlexibleRunner'
strategy = dict(
    type='FSDPStrategy',
    model_wrapper=dict(
        use_orig_params=True,
        auto_wrap_policy=dict(type='torch.distributed.fsdp.wrap.size_based_auto_wrap_policy', min_num_params=1_000_000),
    ),
)
