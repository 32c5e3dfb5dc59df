"""Models with weights: by name, in folders, on the Hugging Face hub.

Public weights whose name says what they fit.
"""

import inspect
import json
import os
import re
from importlib import import_module
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from mmengine.model import BaseModule, initialize

from cpvt_backbones.weights import find_shipped

_SIZES: dict[str, Any] = {
    'medium': dict(embed_dims=512, depth=12, num_heads=8, mlp_ratio=4.0),
    'large': dict(embed_dims=1024, depth=24, num_heads=16, mlp_ratio=4.0),
}
_TABLE = dict(type='Learned')
_AXIAL, _MIXED = dict(type='RoPE', mode='axial'), dict(type='RoPE', mode='mixed')
_DEIT: dict[str, Any] = dict(position=_TABLE)
_DISTILLED = dict(**_DEIT, with_dist_token=True)
_MM_TABLE = dict(type='Learned', antialias=False)  # mmpretrain resizes without a low-pass filter
_MM_DEIT: dict[str, Any] = dict(position=_MM_TABLE)
_DEIT3 = dict(**_DEIT, layer_scale_init=1e-6)
_CLIP = dict(**_DEIT, pre_norm=True, norm_eps=1e-5)
_QUICK_CLIP = dict(**_CLIP, activation='quick_gelu')
_SCALED: dict[str, Any] = dict(layer_scale_init=1e-5)
_DINOV2 = dict(**_DEIT, **_SCALED, img_size=518)
_DINOV3 = dict(
    **_SCALED,
    position=dict(type='RoPE', mode='dinov3'),
    num_registers=4,
    qkv_bias=False,
    norm_eps=1e-5,
)
_BILINEAR = dict(type='Learned', interpolation='bilinear', antialias=False)
_PVT = dict(position=_BILINEAR, embed_norm_eps=1e-6, with_cls_token=True)

# A name of timm, of mmpretrain or of the authors' file, and the arguments of its model besides
# those in the name: arch, patch (patch_size) and size (img_size).
_COLUMNS: dict[str, dict[str, Any]] = {
    r'deit_(?P<arch>tiny|small|base)_patch16_(?P<size>\d+)': _DEIT,
    r'deit-(?P<arch>tiny|small|base)_.*?(?:-(?P<size>\d+)px)?': _MM_DEIT,
    r'deit_(?P<arch>tiny|small|base)_distilled_patch16_(?P<size>\d+)': _DISTILLED,
    r'deit-(?P<arch>tiny|small|base)-distilled_.*?(?:-(?P<size>\d+)px)?': dict(
        **_MM_DEIT, with_dist_token=True
    ),
    r'deit3_(?P<arch>small|medium|base|large)_patch16_(?P<size>\d+)': _DEIT3,
    r'deit3-(?P<arch>small|medium|base|large)-p16_.*?(?:-(?P<size>\d+)px)?': dict(
        **_MM_DEIT, layer_scale_init=1e-6
    ),
    r'vit_(?P<arch>tiny|small|base|large)_patch(?P<patch>8|16|32)_(?P<size>\d+)': _DEIT,
    r'vit-(?P<arch>base|large)-p(?P<patch>16|32)_(?!clip).*?(?:-(?P<size>\d+)px)?': _MM_DEIT,
    r'vit_(?P<arch>base|large)_patch(?P<patch>14|16|32)_clip_(?P<size>\d+)': _CLIP,
    r'vit_(?P<arch>base|large)_patch(?P<patch>14|16|32)_clip_quickgelu_(?P<size>\d+)': _QUICK_CLIP,
    r'vit_(?P<arch>small|base|large)_patch(?P<patch>14)_dinov2': _DINOV2,
    r'vit_(?P<arch>small|base|large)_patch(?P<patch>14)_reg4_dinov2': dict(
        **_DINOV2, num_registers=4
    ),
    r'vit_(?P<arch>small|base|large)_patch16_rope_224': dict(**_SCALED, position=_AXIAL),
    r'vit_(?P<arch>small|base|large)_patch16_rope_mixed_224': dict(**_SCALED, position=_MIXED),
    r'vit_(?P<arch>small|base|large)_patch16_rope_ape_224': dict(
        **_SCALED, position=[_TABLE, _AXIAL]
    ),
    r'vit_(?P<arch>small|base|large)_patch16_rope_mixed_ape_224': dict(
        **_SCALED, position=[_TABLE, _MIXED]
    ),
    r'vit_(?P<arch>small|base|large)_patch16_dinov3': _DINOV3,
    r'vit_(?P<arch>tiny|small|base|large)_patch16_dinov3_qkvb': {**_DINOV3, 'qkv_bias': True},
    r'vit_(?P<arch>small)_plus_patch16_dinov3': dict(**_DINOV3, activation='swiglu'),
    r'vit_(?P<arch>small)_plus_patch16_dinov3_qkvb': {
        **_DINOV3,
        'qkv_bias': True,
        'activation': 'swiglu',
    },
}
_PYRAMIDS: dict[str, dict[str, Any]] = {
    r'twins[_-]pcpvt[_-](?P<arch>small|base|large)(?:_.*)?': {},
    r'pvt_(?P<arch>tiny|small|medium|large)': _PVT,  # whai362/PVT; its "Medium" is `base` here
}
_CHECKPOINTS = (  # above this package: imported when a model is read or written
    'cpvt_backbones.checkpoints'
)


def public_backbone(checkpoint: str | PathLike[str]) -> dict[str, Any] | None:
    """Type and arguments of the backbone that public weights fit, from their name.

    ``None`` for another name.

    Args:
        checkpoint: ``timm://NAME``, ``mmpretrain://NAME``, an address or a file, e.g.
            ``'vit_small_patch16_dinov3.lvd1689m.safetensors'``.
    """
    name = re.split(r'[.?]|-[0-9a-f]{8,}', str(checkpoint).rpartition('/')[2])[0]
    for backbone, table in (('CPVT', _COLUMNS), ('PyramidCPVT', _PYRAMIDS)):
        for pattern, arguments in table.items():
            if match := re.fullmatch(pattern, name):
                numbers = match.groupdict()
                arch = numbers['arch']
                if backbone == 'PyramidCPVT':
                    return dict(
                        type=backbone, arch='base' if arch == 'medium' else arch, **arguments
                    )
                sizes = dict(
                    patch_size=int(numbers.get('patch') or 16),
                    img_size=int(numbers.get('size') or 224),
                )
                return (
                    dict(type=backbone, arch=_SIZES.get(arch, arch), with_cls_token=True)
                    | sizes
                    | arguments
                )
    return None


class PretrainedModel(BaseModule):
    """Base of :class:`Backbone`: weights by name, in folders and on the Hugging Face hub."""

    @classmethod
    def from_pretrained(cls, name: str | PathLike[str], **arguments: Any) -> Any:
        """A backbone with pretrained weights, built with the arguments that they need.

        Args:
            name: Weights that come with the package
                (:func:`cpvt_backbones.weights.shipped_weights`); public ones of docs/weights.md
                (``'timm://vit_small_patch16_dinov3.lvd1689m'``, or a file under its published
                name); a folder of :meth:`save_pretrained`; ``'user/repository'`` or
                ``'hf://user/repository'`` on the Hugging Face hub. In a config ``init_cfg`` takes
                the name, and the arguments are those of the config.
            arguments: Override those that the weights were trained with, e.g.
                ``out_type='featmap'``.

        Raises:
            ValueError: An unknown name, weights of another class, or a ``config.json`` without a
                JSON object.
            FileNotFoundError, CheckpointError: See
                :func:`cpvt_backbones.checkpoints.load_checkpoint`.
        """
        name = os.path.expanduser(name)
        if re.fullmatch(
            r'\w[\w.-]*/[\w.-]+(?<!\.pth)(?<!\.safetensors)', name
        ) and not os.path.exists(name):
            name = f'hf://{name}'  # a repository, and not a missing file
        locate = import_module(_CHECKPOINTS).locate_checkpoint if name.startswith('hf://') else Path
        config = locate(f'{name}/config.json')
        saved = import_module(_CHECKPOINTS).read_json(config) if config.is_file() else None
        public = None if saved else public_backbone(name)
        built = dict(saved or public or find_shipped(name).backbone)
        if (kind := built.pop('type', None)) not in [
            c.__name__ for c in (cls.__mro__ if public else [cls])
        ]:
            advice = (
                f"init_cfg=dict(type='Pretrained', checkpoint={name!r}) takes them where the blocks"
                ' are the same'
            )
            raise ValueError(
                f'name: {name!r} are weights of {kind}, got it for {cls.__name__}; {advice}'
            )
        if public:  # MultiScaleCPVT takes a CPVT's arguments but for with_dist_token
            accepted = inspect.signature(cls).parameters
            built = {key: value for key, value in built.items() if key in accepted}
        model = cls(**{**built, **arguments, 'init_cfg': dict(type='Pretrained', checkpoint=name)})
        initialize(
            model, dict(type='RecognisedPretrained', checkpoint=name)
        )  # init_weights() logs every parameter
        return model

    def save_pretrained(self, folder: str | PathLike[str]) -> None:
        """Write ``config.json`` (class and arguments) and ``model.safetensors``, for
        :meth:`from_pretrained`.
        """
        names = [name for name in inspect.signature(type(self)).parameters if name != 'init_cfg']
        arguments = {name: getattr(self, name) for name in names}
        with torch.device('meta'):
            wanted = type(self)(**arguments).state_dict()
        if wanted.keys() != self.state_dict().keys():
            raise ValueError(
                f'the model must have the weights of a {type(self).__name__}(**{arguments}),'
                ' unfused'
            )
        with import_module(_CHECKPOINTS).atomic_write(Path(folder, 'config.json')) as file:
            file.write(json.dumps(dict(type=type(self).__name__, **arguments), indent=2).encode())
        import_module(_CHECKPOINTS).write_checkpoint(
            self.state_dict(), Path(folder, 'model.safetensors'), meta={}
        )

    def push_to_hub(self, repository: str, **options: Any) -> None:
        """Upload what :meth:`save_pretrained` writes to ``'user/repository'``, created with
        ``options``.
        """
        with TemporaryDirectory() as folder:
            self.save_pretrained(folder)
            import_module(_CHECKPOINTS).sources.upload(folder, repository, **options)
