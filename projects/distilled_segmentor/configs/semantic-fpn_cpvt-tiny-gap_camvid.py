# The shipped segmentor: CamVid's labels, and CLIP's tokens of its images and of others (../tokens.py).
_base_ = '../../../configs/camvid/semantic-fpn_cpvt-tiny-gap_camvid.py'
custom_imports = dict(imports=['cpvt_backbones', 'distilled_segmentor.model'])
model = dict(type='TokenDistillation', index=2, teacher_dims=768)
load, annotate, *augment, pack = _base_.train_pipeline
pack = dict(pack, meta_keys=('img_path', 'ori_shape', 'img_shape', 'teacher_tokens'))
camvid, coco, imagenette = (
    [load, labels, dict(type='Places'), *augment, dict(type='TeacherTokens', folder=f'data/clip-tokens/{name}'), pack]
    for name, labels in (
        ('camvid', annotate),
        ('coco', dict(type='NoLabels', void=_base_.void)),
        ('imagenette', dict(type='NoLabels', void=_base_.void)),
    )
)
labelled = dict(_base_.train_dataloader.dataset, pipeline=camvid)
others = [
    dict(
        type='BaseSegDataset',
        data_root=f'data/clip-tokens/{name}',
        img_suffix='.png',
        data_prefix=dict(img_path='images'),
        metainfo=labelled['metainfo'],
        pipeline=pipeline,
    )
    for name, pipeline in (('coco', coco), ('imagenette', imagenette))
]
# Half of the crops have labels.
train_dataloader = dict(
    dataset=dict(
        _delete_=True,
        type='ConcatDataset',
        datasets=[
            dict(type='RepeatDataset', times=4, dataset=labelled),
            dict(type='RepeatDataset', times=2, dataset=others[0]),
            others[1],
        ],
    )
)
# 5,000 iterations * 4 crops.
max_iters = 5000
train_cfg = dict(max_iters=max_iters, val_interval=max_iters // 2)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=300),
    dict(type='CosineAnnealingLR', T_max=max_iters - 300, eta_min=1e-5, by_epoch=False, begin=300, end=max_iters),
]
