# AdamW. Norms, biases, PEG, tables, class and distillation token are exempt from weight decay, as
# in the authors' ImageNet training. (Twins' detectors exempt PEG and norms at 3x, and nothing at
# 1x.) The keys are parts of parameter names. A schedule or a leaf adds train_cfg and
# param_scheduler.
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=1e-3, betas=(0.9, 0.999), weight_decay=0.05),
    paramwise_cfg=dict(
        norm_decay_mult=0.0,
        bias_decay_mult=0.0,
        custom_keys={
            part: dict(decay_mult=0.0)
            for part in (
                'pos_block',
                'pos_embed',
                'rel_pos',
                'rope.freqs',
                'cls_token',
                'dist_token',
                'reg_token',
            )
        },
    ),
    clip_grad=dict(max_norm=5.0),
)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')
