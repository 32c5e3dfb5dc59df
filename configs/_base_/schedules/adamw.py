# AdamW. PEG, norms and biases are exempt from weight decay, as in the authors' training. A leaf adds train_cfg and
# param_scheduler.
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=1e-3, betas=(0.9, 0.999), weight_decay=0.05),
    paramwise_cfg=dict(norm_decay_mult=0.0, bias_decay_mult=0.0, custom_keys={'pos_block': dict(decay_mult=0.0)}),
    clip_grad=dict(max_norm=5.0),
)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')
