# DeepSpeed ZeRO stage 2 with bf16, on mmengine's FlexibleRunner (pip install deepspeed). The leaf sets
# optim_wrapper.type='DeepSpeedOptimWrapper', whose gradient clipping is the one here.
runner_type = 'FlexibleRunner'
strategy = dict(
    type='DeepSpeedStrategy',
    bf16=dict(enabled=True),
    zero_optimization=dict(
        stage=2,
        allgather_partitions=True,
        reduce_scatter=True,
        allgather_bucket_size=50_000_000,
        reduce_bucket_size=50_000_000,
        overlap_comm=True,
        contiguous_gradients=True,
    ),
    gradient_clipping=1.0,
)
