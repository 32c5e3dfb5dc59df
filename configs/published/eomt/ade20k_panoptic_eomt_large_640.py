# EoMT-L with DINOv2's trunk on ADE20K panoptic at 640 px, from its authors.
# It started from COCO's. Its classes are in ADE20K's order; mmdet has the 100 of objects first.
_base_ = './coco_panoptic_eomt_large_640.py'
data_root = 'data/ADEChallengeData2016/'
_regions = [
    0,
    1,
    2,
    3,
    4,
    5,
    6,
    9,
    11,
    13,
    16,
    17,
    21,
    25,
    26,
    28,
    29,
    34,
    40,
    46,
    48,
    51,
    52,
    54,
    59,
    60,
    61,
    63,
    68,
    77,
    79,
    84,
    91,
    94,
    96,
    99,
    100,
    101,
    105,
    106,
    109,
    113,
    114,
    117,
    122,
    128,
    131,
    140,
    141,
    145,
]
_objects = sorted(set(range(150)) - set(_regions))
model = dict(
    panoptic_head=dict(
        num_things_classes=100, num_stuff_classes=50, class_order=_objects + _regions
    ),
)
max_iters = 39120
train_cfg = dict(max_iters=max_iters)
param_scheduler = [dict(type='HeadFirstPolyLR', by_epoch=False, end=max_iters)]
train_dataloader, val_dataloader = (
    dict(
        dataset=dict(
            type='ADE20KPanopticDataset',
            data_root=data_root,
            ann_file=f'ade20k_panoptic_{part}.json',
            data_prefix=dict(img=f'images/{folder}/', seg=f'ade20k_panoptic_{part}/'),
        )
    )
    for part, folder in (('train', 'training'), ('val', 'validation'))
)
test_dataloader = val_dataloader
val_evaluator = dict(
    ann_file=f'{data_root}ade20k_panoptic_val.json',
    seg_prefix=f'{data_root}ade20k_panoptic_val/',
)
test_evaluator = val_evaluator
