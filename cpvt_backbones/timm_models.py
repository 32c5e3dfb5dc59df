"""The backbones as models of timm: ``timm.create_model('cpvt_small', features_only=True)``.

Importing this module registers them.
"""

from typing import Any, ClassVar

import torch
from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from timm.models._features import feature_take_indices
from torch import Tensor

from .backbones import CPVT, MultiScaleCPVT, PyramidCPVT, list_archs
from .backbones.base import Backbone
from .checkpoints import load_checkpoint
from .layers.checks import check

NAMES: dict[str, type[Backbone]] = {
    'cpvt': CPVT,
    'multiscale_cpvt': MultiScaleCPVT,
    'pyramid_cpvt': PyramidCPVT,
}


class TimmModel(Backbone):
    """Mixin of a backbone: timm's ``feature_info`` and ``forward_intermediates``.

    Args:
        in_chans: Channels of an image.
        kept: Features to build, as indices or as a number of the last ones; ``None`` for all.
        checkpoint: Weights, as in ``init_cfg``.
        num_classes: 0; there is no class layer.
        arguments: Of the backbone.
    """

    plain: ClassVar[type[Backbone]]

    def __init__(
        self,
        *,
        in_chans: int = 3,
        kept: Any = None,
        checkpoint: Any = None,
        num_classes: int = 0,
        **arguments: Any,
    ) -> None:
        check('0: there is no class layer', lambda count: count == 0, num_classes=num_classes)
        is_column = self.plain is CPVT
        if is_column:
            arguments.setdefault('final_norm', False)
        with torch.device('meta'):
            whole: Any = self.plain(**arguments)
        features = list(zip(whole.out_channels, whole.out_strides, strict=True))
        if is_column:
            features *= whole.depth  # each block has the width and stride of the last one
        arguments['out_indices'] = feature_take_indices(len(features), kept)[0]
        super().__init__(in_channels=in_chans, **arguments)
        part = 'pyramid' if self.plain is MultiScaleCPVT else 'blocks'
        self.feature_info = [
            dict(num_chs=width, reduction=stride, module=f'{part}.{index}')
            for index, (width, stride) in enumerate(features)
        ]
        if checkpoint is not None:
            load_checkpoint(self, checkpoint)

    def forward_intermediates(
        self, x: Tensor, indices: Any = None, *, intermediates_only: bool = False, **options: Any
    ) -> Any:
        """timm's method, with its other options at their defaults.

        Returns:
            The maps (B, C, H, W) of ``indices``; unless ``intermediates_only``, the last map
            before them.
        """
        check('left at its default', lambda value: value in (False, 'NCHW'), **options)
        wanted, _ = feature_take_indices(len(self.feature_info), indices)
        built = set(self.out_indices)
        check(f'among those built, {self.out_indices}', built.issuperset, indices=wanted)
        maps = dict(zip(self.out_indices, self(x), strict=True))
        intermediates = [maps[index] for index in wanted]
        return intermediates if intermediates_only else (maps[max(maps)], intermediates)


def _register(plain: type[Backbone], name: str, arch: str) -> None:
    model = type(f'Timm{plain.__name__}', (TimmModel, plain), dict(plain=plain))

    def create(pretrained: bool = False, *, features_only: bool = False, **arguments: Any) -> Any:
        if pretrained:  # only the pyramids have published weights
            published = name.replace('pyramid_cpvt', 'twins_pcpvt')
            arguments.setdefault('checkpoint', f'timm://{published}.in1k')
        if features_only:
            # By default the last three blocks, as of timm's ViTs, or all maps of a pyramid.
            arguments.setdefault('out_indices', 3 if plain is CPVT else (0, 1, 2, 3))
            arguments['kept'] = arguments['out_indices']
        arguments.setdefault('arch', arch)
        arguments.setdefault('feature_cfg', dict(feature_cls='getter'))
        return build_model_with_cfg(model, name, False, features_only=features_only, **arguments)

    create.__name__ = name
    register_model(create)


default_cfgs: dict[str, Any] = {}  # timm looks for this name
for _prefix, _plain in NAMES.items():
    for _arch in list_archs()[_plain.__name__]:
        default_cfgs |= generate_default_cfgs({f'{_prefix}_{_arch}': dict(num_classes=0)})
        _register(_plain, f'{_prefix}_{_arch}', _arch)
