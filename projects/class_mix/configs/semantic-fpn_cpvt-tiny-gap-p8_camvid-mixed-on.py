# Trained on from the segmentor that the config below gave, with its recipe, a second time.
_base_ = './semantic-fpn_cpvt-tiny-gap-p8_camvid-mixed.py'
load_from = 'data/teachers/semantic_fpn_cpvt_tiny_gap_p8-camvid_before.safetensors'
max_iters = 2200
train_cfg = dict(max_iters=max_iters)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=200),
    dict(
        type='CosineAnnealingLR',
        T_max=max_iters - 200,
        eta_min=1e-5,
        by_epoch=False,
        begin=200,
        end=max_iters,
    ),
]
