# Mask R-CNN with ViTDet-B on COCO, of mmdet's project ViTDet, which is not installed with mmdet.
_base_ = ['../../_base_/models/mask_rcnn.py', '../../_base_/schedules/vitdet.py']
norm = dict(type='LayerNorm2d')
model = dict(
    data_preprocessor=dict(
        batch_augments=[dict(type='BatchFixedSizePad', size=(1024, 1024), pad_mask=True)],
    ),
    backbone=dict(
        type='CPVT',
        arch='base',
        with_cls_token=False,
        position=[dict(type='Learned', antialias=False), dict(type='DecomposedRelative', grid=64)],
        window_size=14,
        global_blocks=(2, 5, 8, 11),
        mask_window_padding=False,
        final_norm=False,
        norm_eps=1e-5,
        drop_path_rate=0.1,
        init_cfg=dict(type='Pretrained', checkpoint='timm://vit_base_patch16_224.mae'),
    ),
    neck=dict(_delete_=True, type='SimplePyramid', in_channels=768),
    rpn_head=dict(num_convs=2),
    roi_head=dict(
        bbox_head=dict(type='Shared4Conv1FCBBoxHead', norm_cfg=norm), mask_head=dict(norm_cfg=norm)
    ),
)
# Test images are padded with grey to a square before they are normalised. Boxes are clipped at the
# image, not at the square: mmdet fails to paste the mask of a box beside the image on a CPU.
store = dict(
    type='KeyMapper',
    transforms=[],
    mapping=dict(size='img_shape'),
    remapping=dict(size='unpadded_shape'),
)
restore = dict(
    type='KeyMapper',
    transforms=[],
    mapping=dict(size='unpadded_shape'),
    remapping=dict(size='img_shape'),
)
pad = dict(type='Pad', size=(1024, 1024), pad_val=dict(img=(114, 114, 114)))
test_pipeline = _base_.test_pipeline
test_pipeline[2:2] = [store, pad, restore]
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
