# CLIP ViT-B/16 (timm: vit_base_patch16_clip_quickgelu_224) with its table and PEG.
default_scope = 'mmpretrain'
custom_imports = dict(imports=['cpvt_backbones'])
data_preprocessor = dict(
    mean=[122.771, 116.746, 104.094], std=[68.501, 66.632, 70.323], to_rgb=True
)
model = dict(
    type='ImageClassifier',
    backbone=dict(
        type='CPVT',
        arch='base',
        pre_norm=True,
        activation='quick_gelu',
        norm_eps=1e-5,
        position=[dict(type='Learned'), dict(type='PEG', after_blocks='0-5')],
    ),
)
