"""Models of the benchmark by name: the backbones of this package and their peers in other packages."""

from collections.abc import Callable
from functools import partial

from torch import Tensor, nn

from cpvt_backbones import CPVT, MultiScaleCPVT, PyramidCPVT
from cpvt_backbones.backbones.archs import COLUMNS, PYRAMIDS

from .algorithm1 import Algorithm1

Builder = Callable[[], nn.Module]

COMPILED = '_compiled'
"""Suffix of a model's name: the model runs through ``torch.compile``."""

GLOBAL_BLOCKS: dict[str, tuple[int, ...]] = {
    'windowed': (2, 5, 8, 11),
    'windowed_2_global': (5, 11),
    'all_windowed': (),
}
"""Variant of a windowed ``MultiScaleCPVT`` to its global blocks, of twelve."""


def label(name: str) -> str:
    """Name of a model in tables and plots: a windowed one with the number of its global blocks."""
    blocks = GLOBAL_BLOCKS.get(name.split('_', 4)[-1])
    return name if blocks is None else f'{name} ({len(blocks)} of 12 global)'


class WithValidSizes(nn.Module):
    """A backbone called with ``valid_sizes``: each image of the batch is one pixel narrower than the one before."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) to the backbone's features."""
        count, _, height, width = images.shape
        return self.model(images, valid_sizes=[(height, width - i) for i in range(count)])


def _timm(name: str, **options: bool) -> nn.Module:
    import timm

    return timm.create_model(name, num_classes=0, global_pool='', **options)  # features without pooling


def _mmseg_pcpvt(arch: str) -> nn.Module:
    from mmseg.models.backbones import PCPVT

    # The defaults of mmseg's class are those of another network.
    return PCPVT(**{key: [int(value) for value in values] for key, values in PYRAMIDS[arch].items()})


def _mmpretrain_pcpvt(arch: str) -> nn.Module:
    from mmpretrain.models.backbones import PCPVT

    return PCPVT(arch)


def _mmdet_pvt(arch: str) -> nn.Module:
    from mmdet.models.backbones import PyramidVisionTransformer

    return PyramidVisionTransformer(num_layers=list(PYRAMIDS[arch]['depths']))


def _mmpretrain_deit(arch: str) -> nn.Module:
    from mmpretrain.models.backbones import VisionTransformer

    return VisionTransformer(arch=f'deit-{arch}', img_size=224, patch_size=16, out_type='cls_token')


def _mmseg_vit(dim: int, depth: int, num_heads: int) -> nn.Module:
    from mmseg.models.backbones import VisionTransformer

    sizes = dict(embed_dims=dim, num_layers=depth, num_heads=num_heads, mlp_ratio=4)
    return VisionTransformer(img_size=(224, 224), patch_size=16, final_norm=True, **sizes)


def _columns(arch: str) -> dict[str, Builder]:
    sizes = dict(dim=COLUMNS[arch]['embed_dims'], depth=COLUMNS[arch]['depth'], num_heads=COLUMNS[arch]['num_heads'])
    cpvt = partial(CPVT, arch=arch, position=dict(type='PEG', after_blocks=(0, 1, 2, 3, 4)))
    gap = partial(cpvt, with_cls_token=False, out_type='avg_featmap')
    multi_scale = partial(MultiScaleCPVT, arch=arch)
    windowed = {
        f'multi_scale_cpvt_{arch}_{variant}': partial(multi_scale, window_size=14, global_blocks=blocks)
        for variant, blocks in GLOBAL_BLOCKS.items()
    }
    return {
        f'cpvt_{arch}': partial(cpvt, out_type='cls_token'),
        f'cpvt_{arch}_gap': gap,
        f'cpvt_{arch}_gap_fused': lambda: gap().fuse(),
        f'multi_scale_cpvt_{arch}': multi_scale,
        f'multi_scale_cpvt_{arch}_valid_sizes': lambda: WithValidSizes(multi_scale()),
        **windowed,
        f'algorithm1_{arch}': partial(Algorithm1, **sizes),
        f'timm_deit_{arch}': partial(_timm, f'deit_{arch}_patch16_224', dynamic_img_size=True),
        f'mmpretrain_deit_{arch}': partial(_mmpretrain_deit, arch),
        f'mmseg_vit_{arch}': partial(_mmseg_vit, **sizes),
    }


def _pyramids(arch: str) -> dict[str, Builder]:
    pyramid = partial(PyramidCPVT, arch=arch)
    models: dict[str, Builder] = {
        f'pyramid_cpvt_{arch}': pyramid,
        f'pyramid_cpvt_{arch}_valid_sizes': lambda: WithValidSizes(pyramid()),
        f'pyramid_cpvt_{arch}_fused': lambda: pyramid().fuse(),
        f'mmseg_pcpvt_{arch}': partial(_mmseg_pcpvt, arch),
        f'mmdet_pvt_{arch}': partial(_mmdet_pvt, arch),
    }
    if arch != 'tiny':  # timm and mmpretrain have no tiny one
        models[f'timm_twins_pcpvt_{arch}'] = partial(_timm, f'twins_pcpvt_{arch}')
        models[f'mmpretrain_pcpvt_{arch}'] = partial(_mmpretrain_pcpvt, arch)
    return models


MODELS: dict[str, Builder] = {}
"""Name of a model to a function that builds it with random weights."""
for _arch in COLUMNS:
    MODELS |= _columns(_arch)
for _arch in PYRAMIDS:
    MODELS |= _pyramids(_arch)
