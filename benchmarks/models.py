"""Models of the benchmark by name: the backbones of this package and their peers in other
packages.
"""

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

from torch import Tensor, nn

from cpvt_backbones import CPVT, MultiScaleCPVT, PyramidCPVT
from cpvt_backbones.backbones.archs import HIERARCHICAL_ARCHS, PLAIN_ARCHS
from cpvt_backbones.layers.rope import TEMPERATURES

from . import training

Builder = Callable[[], nn.Module]

GLOBAL_BLOCKS = {'windowed': [2, 5, 8, 11], 'windowed_2_global': [5, 11], 'all_windowed': []}
"""Variant of a windowed ``MultiScaleCPVT`` to its global blocks, of twelve."""


def label(name: str) -> str:
    """Name of a model in tables and plots: a windowed one with the number of its global blocks."""
    blocks = GLOBAL_BLOCKS.get(name.split('_', 4)[-1])
    return name if blocks is None else f'{name} ({len(blocks)} of 12 global)'


class WithValidSizes(nn.Module):
    """A backbone called with ``valid_sizes``: each image of the batch is one pixel narrower than
    the one before.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) to the backbone's features."""
        count, _, height, width = images.shape
        return self.model(images, valid_sizes=[(height, width - i) for i in range(count)])


def _peer(path: str, *args: Any, **arguments: Any) -> Builder:
    """Builder that imports a class or function of another package and calls it."""
    module, _, name = path.rpartition('.')
    return lambda: getattr(import_module(module), name)(*args, **arguments)


# A model that ends with its features.
_timm = partial(_peer, 'timm.create_model', num_classes=0, global_pool='')


def _plain_models(arch: str) -> dict[str, Builder]:
    dim, depth, num_heads = (
        PLAIN_ARCHS[arch][name] for name in ('embed_dims', 'depth', 'num_heads')
    )
    sizes = dict(embed_dims=dim, num_layers=depth, num_heads=num_heads, mlp_ratio=4)
    images = dict(img_size=(224, 224), patch_size=16)
    cpvt = partial(CPVT, arch=arch, position=dict(type='PEG', after_blocks=(0, 1, 2, 3, 4)))
    gap = partial(cpvt, with_cls_token=False, out_type='avg_featmap')
    multi_scale = partial(MultiScaleCPVT, arch=arch)
    models: dict[str, Builder] = {
        f'cpvt_{arch}': partial(cpvt, out_type='cls_token'),
        f'cpvt_{arch}_gap': gap,
        f'cpvt_{arch}_gap_fused': lambda: gap().fuse(),
        f'multi_scale_cpvt_{arch}': multi_scale,
        f'multi_scale_cpvt_{arch}_valid_sizes': lambda: WithValidSizes(multi_scale()),
        f'timm_deit_{arch}': _timm(f'deit_{arch}_patch16_224', dynamic_img_size=True),
        f'mmseg_vit_{arch}': _peer(
            'mmseg.models.backbones.VisionTransformer', final_norm=True, **sizes, **images
        ),
    }
    name = 'mmpretrain.models.VisionTransformer'
    models[f'mmpretrain_deit_{arch}'] = _peer(name, f'deit-{arch}', out_type='cls_token', **images)
    models[f'cpvt_{arch}_none'] = partial(cpvt, position=None, out_type='cls_token')
    for mode in TEMPERATURES:
        rope = partial(cpvt, position=dict(type='RoPE', mode=mode), out_type='cls_token')
        models[f'cpvt_{arch}_rope_{mode}'] = rope
    for variant, blocks in GLOBAL_BLOCKS.items():
        models[f'multi_scale_cpvt_{arch}_{variant}'] = partial(
            multi_scale, window_size=14, global_blocks=blocks
        )
    return models


def _pyramids(arch: str) -> dict[str, Builder]:
    pyramid = partial(PyramidCPVT, arch=arch)
    sizes = {
        key: [int(value) for value in values] for key, values in HIERARCHICAL_ARCHS[arch].items()
    }
    models: dict[str, Builder] = {
        f'pyramid_cpvt_{arch}': pyramid,
        f'pyramid_cpvt_{arch}_valid_sizes': lambda: WithValidSizes(pyramid()),
        f'pyramid_cpvt_{arch}_fused': lambda: pyramid().fuse(),
        f'mmseg_pcpvt_{arch}': _peer('mmseg.models.backbones.PCPVT', **sizes),
        f'mmdet_pvt_{arch}': _peer(
            'mmdet.models.PyramidVisionTransformer', num_layers=sizes['depths']
        ),
    }
    if arch != 'tiny':  # timm and mmpretrain have no tiny one
        models[f'timm_twins_pcpvt_{arch}'] = _timm(f'twins_pcpvt_{arch}')
        models[f'mmpretrain_pcpvt_{arch}'] = _peer('mmpretrain.models.PCPVT', arch)
    return models


def _shipped(name: str) -> nn.Module:
    """The graph of shipped weights that is exported, from normalised images to boxes or
    class maps.
    """
    from cpvt_backbones.export import graph_of
    from cpvt_backbones.inference import ToolboxPredictor
    from cpvt_backbones.toolboxes import read_config
    from cpvt_backbones.weights import find_shipped

    weights = find_shipped(name)
    cfg = read_config(weights.config_file)
    return graph_of(
        ToolboxPredictor(cfg=cfg, checkpoint=weights.file, device='cpu').model, pixels=False
    )


MODELS: dict[str, Builder] = {
    'retinanet': partial(_shipped, 'retinanet_cpvt_tiny_gap-bccd'),
    'semantic_fpn': partial(_shipped, 'semantic_fpn_cpvt_tiny_gap-camvid'),
}
"""Name of a model to a function that builds it: a backbone with random weights, or a model
with shipped ones.
"""
_PCPVT = {
    key: [int(value) for value in values] for key, values in HIERARCHICAL_ARCHS['small'].items()
}
_PEERS: dict[str, tuple[str, dict[str, Any]]] = {
    'retinanet': (
        'mmdet_pvt',
        dict(type='PyramidVisionTransformer', num_layers=_PCPVT['depths'], init_cfg=None),
    ),
    'semantic_fpn': ('mmseg_pcpvt', dict(type='PCPVT', drop_path_rate=0.2, **_PCPVT)),
}
for _name, (_backbone, _arguments) in _PEERS.items():
    MODELS[f'{_name}_pyramid_cpvt_small'] = partial(training.build, _name)
    MODELS[f'{_name}_{_backbone}_small'] = partial(training.build, _name, _arguments)
for _arch in PLAIN_ARCHS:
    MODELS |= _plain_models(_arch)
for _arch in ('tiny', 'small', 'base', 'large'):  # not Twins-SVT, which has other peers
    MODELS |= _pyramids(_arch)
