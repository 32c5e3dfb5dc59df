# DeepSpeed ZeRO stage 2 with bf16, on mmengine's FlexibleRunner (pip install 'deepspeed<0.19.7', as
# long as mmengine imports what 0.19.7 no longer has). The leaf sets an optim_wrapper of type
# 'DeepSpeedOptimWrapper' and without clip_grad: gradient clipping is the one here.
strategy = dict(
    type='DeepSpeedStrategy',
    bf16=dict(enabled=True),
    inputs_to_half=['inputs'],
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
