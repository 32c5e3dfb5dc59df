# 8 GPUs * 2 crops = 16, the batch of Twins' B and L; 160k iterations are 127 times through the
# 20,210 images. Drop path 0.2. S of Twins was trained with 32 crops: 8xb4.
_base_ = [
    '../_base_/models/upernet.py',
    '../_base_/datasets/ade20k.py',
    '../_base_/schedules/ade20k_160k.py',
    '../_base_/runtime/mmseg.py',
]
model = dict(
    backbone=dict(
        type='PyramidCPVT',
        arch='small',
        init_cfg=dict(type='Pretrained', checkpoint='timm://twins_pcpvt_small.in1k'),
        drop_path_rate=0.2,
    ),
    decode_head=dict(in_channels=[64, 128, 320, 512], num_classes=150),
    auxiliary_head=dict(in_channels=320, num_classes=150),
)
