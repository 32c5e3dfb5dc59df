# DINOv3-S/16 with PEG, which starts as the identity: step 0 is the pretrained model. Rates by
# layer, as for the plain ViT.
_base_ = './retinanet_multiscale-cpvt-s_fpn_1x_coco.py'
model = dict(
    backbone=dict(
        position=[dict(type='RoPE', mode='dinov3'), dict(type='PEG', after_blocks='0-5')],
        with_cls_token=True,
        num_registers=4,
        qkv_bias=False,
        layer_scale_init=1e-5,
        norm_eps=1e-5,
        init_cfg=dict(type='Pretrained', checkpoint='timm://vit_small_patch16_dinov3.lvd1689m'),
    )
)
