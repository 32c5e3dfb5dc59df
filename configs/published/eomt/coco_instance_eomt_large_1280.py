# EoMT-L with DINOv2's trunk on COCO's objects at 1280 px, from its authors.
_base_ = './coco_instance_eomt_large_640.py'
model = dict(backbone=dict(img_size=1280), test_cfg=dict(square=1280))
train_pipeline, test_pipeline = _base_.train_pipeline, _base_.test_pipeline
train_pipeline[3].scale = train_pipeline[4].crop_size = train_pipeline[5].size = (1280, 1280)
test_pipeline[1].scale = (1280, 1280)
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
