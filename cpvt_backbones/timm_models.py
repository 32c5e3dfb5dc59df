"""The backbones as models of timm: ``timm.create_model('cpvt_small', features_only=True)``.

Imported when timm is.
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


class TimmModel(Backbone):
    """A backbone with timm's ``feature_info``.

    ``kept``: the features to build; ``checkpoint``: as in ``init_cfg``.
    """

    plain: ClassVar[type[Backbone]]

    def __init__(
        self, *, in_chans: int = 3, kept: Any = None, checkpoint: Any = None, **arguments: Any
    ) -> None:
        check(
            '0: there is no class layer',
            lambda count: count == 0,
            num_classes=arguments.pop('num_classes', 0),
        )
        column, part = self.plain is CPVT, 'pyramid' if self.plain is MultiScaleCPVT else 'blocks'
        arguments = dict(final_norm=False) | arguments if column else arguments
        with torch.device('meta'):
            whole: Any = self.plain(**arguments)
        features = [*zip(whole.out_channels, whole.out_strides, strict=True)] * (
            whole.depth if column else 1
        )
        arguments['out_indices'] = feature_take_indices(len(features), kept)[0]
        super().__init__(in_channels=in_chans, **arguments)
        self.feature_info = [
            dict(num_chs=width, reduction=stride, module=f'{part}.{i}')
            for i, (width, stride) in enumerate(features)
        ]
        if checkpoint is not None:
            load_checkpoint(self, checkpoint)

    def forward_intermediates(
        self, x: Tensor, indices: Any = None, *, intermediates_only: bool = False, **options: Any
    ) -> Any:
        """timm's method, with its other options at their defaults: maps (B, C, H, W).

        Before them, the last one.
        """
        check('left at its default', lambda value: value in (False, 'NCHW'), **options)
        wanted, _ = feature_take_indices(len(self.feature_info), indices)
        check(
            f'among those built, {self.out_indices}',
            set(self.out_indices).issuperset,
            indices=wanted,
        )
        maps = dict(zip(self.out_indices, self(x), strict=True))
        return (
            [maps[i] for i in wanted]
            if intermediates_only
            else (maps[max(maps)], [maps[i] for i in wanted])
        )


def _register(plain: type[Backbone], name: str, arch: str) -> None:
    model = type(f'Timm{plain.__name__}', (TimmModel, plain), dict(plain=plain))

    def create(pretrained: bool = False, *, features_only: bool = False, **arguments: Any) -> Any:
        if pretrained:  # only the pyramids have published weights
            arguments.setdefault(
                'checkpoint', f'timm://{name.replace("pyramid_cpvt", "twins_pcpvt")}.in1k'
            )
        if features_only:  # by default the last three blocks, as of timm's ViTs, or all maps
            arguments['kept'] = arguments.setdefault(
                'out_indices', 3 if plain is CPVT else (0, 1, 2, 3)
            )
        arguments = dict(arch=arch, feature_cfg=dict(feature_cls='getter')) | arguments
        return build_model_with_cfg(model, name, False, features_only=features_only, **arguments)

    create.__name__ = name
    register_model(create)


default_cfgs: dict[str, Any] = {}
for _plain, _prefix in (
    (CPVT, 'cpvt'),
    (MultiScaleCPVT, 'multiscale_cpvt'),
    (PyramidCPVT, 'pyramid_cpvt'),
):
    for _arch in list_archs()[_plain.__name__]:
        default_cfgs |= generate_default_cfgs({f'{_prefix}_{_arch}': dict(num_classes=0)})
        _register(_plain, f'{_prefix}_{_arch}', _arch)
