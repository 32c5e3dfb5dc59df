# COCO 2017 in its own layout: data/coco/{annotations,train2017,val2017}. 117,266 training images
# with a box; 2 images a GPU, so 7,330 iterations an epoch on 8 GPUs.
_base_ = 'mmdet::_base_/datasets/coco_detection.py'
tta_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(
        type='TestTimeAug',
        transforms=[
            [
                dict(type='Resize', scale=scale, keep_ratio=True)
                for scale in ((1333, 640), (1333, 800), (1600, 960))
            ],
            [dict(type='RandomFlip', prob=1.0), dict(type='RandomFlip', prob=0.0)],
            [dict(type='LoadAnnotations', with_bbox=True)],
            [dict(type='PackDetInputs')],
        ],
    ),
]
