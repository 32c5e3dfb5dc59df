"""The backbones as timm models; importing this module registers them.

Examples:
    >>> import timm
    >>> import cpvt_backbones.timm_models
    >>> model = timm.create_model('cpvt_tiny', num_classes=100)
    >>> name = 'cpvt_tiny_gap.imagenette'
    >>> classifier = timm.create_model(name, pretrained=True)
"""

from typing import Any

from timm.models import build_model_with_cfg, generate_default_cfgs, register_model

from cpvt_backbones.backbones.base import DENSE_POSITION
from cpvt_backbones.weights import shipped_weights

from .base import TimmModel, filter_checkpoint
from .models import TimmCPVT, TimmMultiScaleCPVT, TimmPyramidCPVT

_SHIPPED = 'cpvt_tiny_gap-imagenette'


def _plain_cfg(**options: Any) -> dict[str, Any]:
    return dict(first_conv='patch_embed.proj', classifier='head', crop_pct=0.9, **options)


def _hierarchical_cfg(**options: Any) -> dict[str, Any]:
    return dict(
        first_conv='patch_embeds.0.proj',
        classifier='head',
        crop_pct=0.9,
        pool_size=(7, 7),
        **options,
    )


def _shipped_cfg() -> dict[str, Any]:
    """Return the config of the shipped classifier; :meth:`TimmModel.load_pretrained` reads it."""
    classes = shipped_weights()[_SHIPPED].dataset_meta['classes']
    return dict(
        file=_SHIPPED,
        custom_load=True,
        num_classes=len(classes),
        label_names=tuple(classes),
        input_size=(3, 112, 112),
        crop_pct=1.0,
        crop_mode='squash',
        first_conv='patch_embed.proj',
        classifier='head',
    )


default_cfgs = generate_default_cfgs(  # timm looks for this name
    {
        'cpvt_tiny.untrained': _plain_cfg(),
        'cpvt_small.untrained': _plain_cfg(),
        'cpvt_base.untrained': _plain_cfg(),
        'cpvt_tiny_gap.imagenette': _shipped_cfg(),
        'cpvt_small_gap.untrained': _plain_cfg(),
        'cpvt_base_gap.untrained': _plain_cfg(),
        'multiscale_cpvt_tiny.untrained': _plain_cfg(pool_size=(7, 7)),
        'multiscale_cpvt_small.untrained': _plain_cfg(pool_size=(7, 7)),
        'multiscale_cpvt_base.untrained': _plain_cfg(pool_size=(7, 7)),
        'pyramid_cpvt_tiny.untrained': _hierarchical_cfg(),
        'pyramid_cpvt_small.in1k': _hierarchical_cfg(hf_hub_id='timm/twins_pcpvt_small.in1k'),
        'pyramid_cpvt_base.in1k': _hierarchical_cfg(hf_hub_id='timm/twins_pcpvt_base.in1k'),
        'pyramid_cpvt_large.in1k': _hierarchical_cfg(hf_hub_id='timm/twins_pcpvt_large.in1k'),
        'pyramid_cpvt_svt_small.in1k': _hierarchical_cfg(hf_hub_id='timm/twins_svt_small.in1k'),
        'pyramid_cpvt_svt_base.in1k': _hierarchical_cfg(hf_hub_id='timm/twins_svt_base.in1k'),
        'pyramid_cpvt_svt_large.in1k': _hierarchical_cfg(hf_hub_id='timm/twins_svt_large.in1k'),
    }
)


def _create(
    model: type[TimmModel],
    name: str,
    pretrained: bool,
    arguments: dict[str, Any],
    **defaults: Any,
) -> Any:
    """Build a model by timm's builder; ``defaults`` are arguments that the caller may override."""
    arguments = {**defaults, **arguments}
    indices = arguments.pop('out_indices', model.default_indices)
    return build_model_with_cfg(
        model,
        name,
        pretrained,
        pretrained_filter_fn=filter_checkpoint,
        feature_cfg=dict(out_indices=indices, feature_cls='getter'),
        **arguments,
    )


@register_model
def cpvt_tiny(pretrained: bool = False, **arguments: Any) -> Any:
    """CPVT-Ti: one PEG, class token (arXiv 2102.10882)."""
    return _create(TimmCPVT, 'cpvt_tiny', pretrained, arguments, arch='tiny')


@register_model
def cpvt_small(pretrained: bool = False, **arguments: Any) -> Any:
    """CPVT-S: one PEG, class token."""
    return _create(TimmCPVT, 'cpvt_small', pretrained, arguments, arch='small')


@register_model
def cpvt_base(pretrained: bool = False, **arguments: Any) -> Any:
    """CPVT-B: one PEG, class token."""
    return _create(TimmCPVT, 'cpvt_base', pretrained, arguments, arch='base')


_GAP = dict(with_cls_token=False, position=DENSE_POSITION)


@register_model
def cpvt_tiny_gap(pretrained: bool = False, **arguments: Any) -> Any:
    """CPVT-Ti-GAP: five PEGs, the mean over the tokens instead of a class token."""
    return _create(TimmCPVT, 'cpvt_tiny_gap', pretrained, arguments, arch='tiny', **_GAP)


@register_model
def cpvt_small_gap(pretrained: bool = False, **arguments: Any) -> Any:
    """CPVT-S-GAP: five PEGs, the mean over the tokens instead of a class token."""
    return _create(TimmCPVT, 'cpvt_small_gap', pretrained, arguments, arch='small', **_GAP)


@register_model
def cpvt_base_gap(pretrained: bool = False, **arguments: Any) -> Any:
    """CPVT-B-GAP: five PEGs, the mean over the tokens instead of a class token."""
    return _create(TimmCPVT, 'cpvt_base_gap', pretrained, arguments, arch='base', **_GAP)


@register_model
def multiscale_cpvt_tiny(pretrained: bool = False, **arguments: Any) -> Any:
    """CPVT-Ti-GAP with maps of strides 4, 8, 16 and 32."""
    return _create(TimmMultiScaleCPVT, 'multiscale_cpvt_tiny', pretrained, arguments, arch='tiny')


@register_model
def multiscale_cpvt_small(pretrained: bool = False, **arguments: Any) -> Any:
    """CPVT-S-GAP with maps of strides 4, 8, 16 and 32."""
    return _create(TimmMultiScaleCPVT, 'multiscale_cpvt_small', pretrained, arguments, arch='small')


@register_model
def multiscale_cpvt_base(pretrained: bool = False, **arguments: Any) -> Any:
    """CPVT-B-GAP with maps of strides 4, 8, 16 and 32."""
    return _create(TimmMultiScaleCPVT, 'multiscale_cpvt_base', pretrained, arguments, arch='base')


@register_model
def pyramid_cpvt_tiny(pretrained: bool = False, **arguments: Any) -> Any:
    """PVT-Tiny with a PEG in each stage."""
    return _create(TimmPyramidCPVT, 'pyramid_cpvt_tiny', pretrained, arguments, arch='tiny')


@register_model
def pyramid_cpvt_small(pretrained: bool = False, **arguments: Any) -> Any:
    """Twins-PCPVT-S (arXiv 2104.13840)."""
    return _create(TimmPyramidCPVT, 'pyramid_cpvt_small', pretrained, arguments, arch='small')


@register_model
def pyramid_cpvt_base(pretrained: bool = False, **arguments: Any) -> Any:
    """Twins-PCPVT-B."""
    return _create(TimmPyramidCPVT, 'pyramid_cpvt_base', pretrained, arguments, arch='base')


@register_model
def pyramid_cpvt_large(pretrained: bool = False, **arguments: Any) -> Any:
    """Twins-PCPVT-L."""
    return _create(TimmPyramidCPVT, 'pyramid_cpvt_large', pretrained, arguments, arch='large')


@register_model
def pyramid_cpvt_svt_small(pretrained: bool = False, **arguments: Any) -> Any:
    """Twins-SVT-S (arXiv 2104.13840)."""
    name = 'pyramid_cpvt_svt_small'
    return _create(TimmPyramidCPVT, name, pretrained, arguments, arch='svt_small')


@register_model
def pyramid_cpvt_svt_base(pretrained: bool = False, **arguments: Any) -> Any:
    """Twins-SVT-B."""
    name = 'pyramid_cpvt_svt_base'
    return _create(TimmPyramidCPVT, name, pretrained, arguments, arch='svt_base')


@register_model
def pyramid_cpvt_svt_large(pretrained: bool = False, **arguments: Any) -> Any:
    """Twins-SVT-L."""
    name = 'pyramid_cpvt_svt_large'
    return _create(TimmPyramidCPVT, name, pretrained, arguments, arch='svt_large')
