# EoMT's training (arXiv 2503.19108): 16 images a step, AdamW, rates by layer, 0.8 a block. Masked
# attention is annealed to none. A leaf sets max_iters, and param_scheduler to the same end.
# Norms and biases decay, as the authors' do; PEG, tables and tokens do not.
optim_wrapper = dict(
    type='OptimWrapper',
    constructor='LayerDecayOptimWrapperConstructor',
    optimizer=dict(type='AdamW', lr=1e-4, betas=(0.9, 0.999), weight_decay=0.05),
    paramwise_cfg=dict(layer_decay_rate=0.8),
    clip_grad=None,
)
custom_hooks = [dict(type='MaskAnnealingHook')]
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')
auto_scale_lr = dict(enable=False, base_batch_size=16)
