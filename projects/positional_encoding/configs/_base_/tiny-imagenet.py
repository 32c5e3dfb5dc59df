# Changes of every classifier's config for Tiny ImageNet: 50 classes at 32 px, 8 x 8 tokens. The
# lists are those of ../../splits.py.
lists = dict(data_prefix='')
test = dict(
    ann_file='meta/test.txt',
    pipeline=[
        dict(type='Resize', scale=(32, 32), backend='pillow', interpolation='bicubic'),
        dict(type='PackInputs'),
    ],
    **lists,
)
data_preprocessor = dict(num_classes=50, batch_augments=dict(augments=dict(size=32)))
model = dict(backbone=dict(img_size=32, patch_size=4), head=dict(num_classes=50))
train_dataloader = dict(dataset=dict(ann_file='meta/train.txt', **lists))
val_dataloader = dict(dataset=test)
test_dataloader = dict(dataset=test)
