"""The models a speed comparison can name: this package's, and their peers in other packages."""

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor, nn

from cpvt_backbones.backbones import CPVT, MultiScaleCPVT, PyramidCPVT
from cpvt_backbones.backbones.archs import COLUMNS, PYRAMIDS
from cpvt_backbones.backbones.base import Backbone

from .plain import PlainCPVT

Builder = Callable[[], nn.Module]

FIVE_PEGS: dict[str, Any] = dict(type='PEG', after_blocks=(0, 1, 2, 3, 4))
WINDOWS: dict[str, Any] = dict(window_size=14, global_blocks=(2, 5, 8, 11))


class Features(nn.Module):
    """The part of a timm model that ends with its features, the classifier's pooling left out."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) to the model's features."""
        return self.model.forward_features(images)  # type: ignore[operator]


class EachBySize(nn.Module):
    """A backbone that is told a size for each image of the batch, each a pixel narrower than the one before."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) to the backbone's features."""
        count, _, height, width = images.shape
        return self.model(images, valid_sizes=[(height, width - i) for i in range(count)])


def _fused(backbone: type[Backbone], **arguments: Any) -> nn.Module:
    return backbone(**arguments).fuse()


def _each_by_size(backbone: type[Backbone], **arguments: Any) -> nn.Module:
    return EachBySize(backbone(**arguments))


def _timm(name: str, **options: Any) -> nn.Module:
    import timm

    return Features(timm.create_model(name, num_classes=0, **options))


def _mmseg_pcpvt(arch: str) -> nn.Module:
    from mmseg.models.backbones import PCPVT

    # Its defaults are another network's.
    numbers = {key: [int(value) for value in values] for key, values in PYRAMIDS[arch].items()}
    return PCPVT(**numbers)


def _mmpretrain_pcpvt(arch: str) -> nn.Module:
    from mmpretrain.models.backbones import PCPVT

    return PCPVT(arch)


def _mmdet_pvt(arch: str) -> nn.Module:
    from mmdet.models.backbones import PyramidVisionTransformer

    return PyramidVisionTransformer(num_layers=list(PYRAMIDS[arch]['depths']))


def _mmpretrain_deit(arch: str) -> nn.Module:
    from mmpretrain.models.backbones import VisionTransformer

    return VisionTransformer(arch=f'deit-{arch}', img_size=224, patch_size=16, out_type='cls_token')


def _mmseg_vit(arch: str) -> nn.Module:
    from mmseg.models.backbones import VisionTransformer

    numbers = COLUMNS[arch]
    return VisionTransformer(
        img_size=(224, 224),
        patch_size=16,
        embed_dims=numbers['embed_dims'],
        num_layers=numbers['depth'],
        num_heads=numbers['num_heads'],
        mlp_ratio=4,
        final_norm=True,
    )


def _contestants() -> dict[str, Builder]:
    models: dict[str, Builder] = {}
    for arch, numbers in COLUMNS.items():
        dim, depth, heads = numbers['embed_dims'], numbers['depth'], numbers['num_heads']
        models |= {
            f'cpvt_{arch}': partial(CPVT, arch=arch, position=FIVE_PEGS, out_type='cls_token'),
            f'cpvt_{arch}_gap': partial(
                CPVT, arch=arch, position=FIVE_PEGS, with_cls_token=False, out_type='avg_featmap'
            ),
            f'cpvt_{arch}_gap_fused': partial(
                _fused, CPVT, arch=arch, position=FIVE_PEGS, with_cls_token=False, out_type='avg_featmap'
            ),
            f'multi_scale_cpvt_{arch}': partial(MultiScaleCPVT, arch=arch),
            f'multi_scale_cpvt_{arch}_valid_sizes': partial(_each_by_size, MultiScaleCPVT, arch=arch),
            f'multi_scale_cpvt_{arch}_windowed': partial(MultiScaleCPVT, arch=arch, **WINDOWS),
            f'multi_scale_cpvt_{arch}_windowed_2_global': partial(
                MultiScaleCPVT, arch=arch, window_size=14, global_blocks=(5, 11)
            ),
            f'multi_scale_cpvt_{arch}_all_windowed': partial(MultiScaleCPVT, arch=arch, window_size=14),
            f'algorithm1_{arch}': partial(PlainCPVT, dim=dim, depth=depth, num_heads=heads),
            f'timm_deit_{arch}': partial(_timm, f'deit_{arch}_patch16_224', dynamic_img_size=True),
            f'mmpretrain_deit_{arch}': partial(_mmpretrain_deit, arch),
            f'mmseg_vit_{arch}': partial(_mmseg_vit, arch),
        }
    for arch in PYRAMIDS:
        models |= {
            f'pyramid_cpvt_{arch}': partial(PyramidCPVT, arch=arch),
            f'pyramid_cpvt_{arch}_valid_sizes': partial(_each_by_size, PyramidCPVT, arch=arch),
            f'pyramid_cpvt_{arch}_fused': partial(_fused, PyramidCPVT, arch=arch),
            f'mmseg_pcpvt_{arch}': partial(_mmseg_pcpvt, arch),
            f'mmdet_pvt_{arch}': partial(_mmdet_pvt, arch),
        }
        if arch != 'tiny':  # neither has a tiny one
            models[f'timm_twins_pcpvt_{arch}'] = partial(_timm, f'twins_pcpvt_{arch}')
            models[f'mmpretrain_pcpvt_{arch}'] = partial(_mmpretrain_pcpvt, arch)
    return models


CONTESTANTS = _contestants()
"""Name of a model to a function that builds it with random weights."""
