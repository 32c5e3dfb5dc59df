"""Pretrained models by name, in folders and on the Hugging Face hub."""

import inspect
import json
import os
import re
from collections.abc import Mapping, Sequence
from logging import FileHandler
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from mmengine.logging import MMLogger, print_log
from mmengine.model import BaseModule, update_init_info
from torch import Tensor

from cpvt_backbones.checkpoints import (
    PREPROCESSOR,
    Architecture,
    CheckpointError,
    Normalisation,
    atomic_write,
    load_checkpoint,
    named_backbone,
    naming_file,
    preprocessor_config,
    read_checkpoint,
    recognise_backbone,
    similar_timm_names,
    stored_config,
    write_checkpoint,
)
from cpvt_backbones.checks import (
    OF_BASES,
    check_by_keyword,
    check_keywords,
    check_path,
    is_int,
    is_sequence,
)
from cpvt_backbones.errors import InputError
from cpvt_backbones.weights import published_weights, shipped_weights, similar_names

_SUFFIXES = (
    *('.pth', '.pt', '.safetensors', '.bin', '.ckpt', '.pkl', '.pickle', '.npz', '.h5', '.onnx'),
    *('.pt2', '.msgpack', '.tar', '.gz', '.zip', '.json', '.py'),
)
# As huggingface_hub's validate_repo_id, with a user.
_HUB_NAME = re.compile(r'(?!.*(--|\.\.|\.git$))\b[\w.-]+\b/\b[\w.-]{1,96}\b', re.ASCII)


class CheckpointInit:
    """``PretrainedInit`` that loads by :func:`load_checkpoint` and takes its options."""

    def __init__(
        self, checkpoint: str | PathLike[str], map_location: Any = 'cpu', **options: Any
    ) -> None:
        called = "init_cfg=dict(type='Pretrained')"
        check_keywords(called, load_checkpoint, options, positional=('model', 'content'))
        self.checkpoint, self.options = checkpoint, options

    def __call__(self, module: Any) -> None:
        report = load_checkpoint(module, self.checkpoint, **self.options)
        update_init_info(module, f'loaded from {self.checkpoint}')
        # mmengine compares the means of parameters, which may be equal, or differ for new PEGs.
        loaded = set(report.loaded)
        for name, parameter in module.named_parameters():
            info = module._params_init_info[parameter]
            if name in loaded:
                info['init_info'] = f'loaded from {self.checkpoint}'
            elif name in report.added:
                info['init_info'] = report.added[name]


class PretrainedModel(BaseModule):
    """Base class of :class:`Backbone` that loads and saves pretrained weights.

    Attributes:
        normalisation: Mean and standard deviation of the images that the loaded weights were
            trained on; ``None`` if unknown. See
            :func:`cpvt_backbones.checkpoints.find_normalisation`.
    """

    normalisation: Normalisation | None = None

    def __new__(cls, *values: Any, **arguments: Any) -> Any:
        """Refuse values without keyword, and keywords that the constructor lacks."""
        check_by_keyword(cls, values, suggested='arch')
        check_keywords(cls.__name__, cls, arguments, advice_on=OF_BASES)
        return super().__new__(cls)

    def _dump_init_info(self) -> None:
        """Write mmengine's list, one line per parameter, to log files only.

        For a backbone alone, the console has the report of :func:`load_checkpoint`.
        """
        handlers = MMLogger.get_current_instance().handlers
        if any(isinstance(handler, FileHandler) for handler in handlers):
            super()._dump_init_info()

    @classmethod
    def from_pretrained(
        cls,
        name: str | PathLike[str],
        *,
        prefix: str | None = None,
        ema: bool = False,
        table_grid: Sequence[Any] | None = None,
        **arguments: Any,
    ) -> Any:
        """Build a backbone of this class with pretrained weights and the arguments that they need.

        The model is in training mode, like one from the constructor; call ``eval()`` to predict.

        Args:
            name: One of

                - weights that come with the package, by name
                  (:func:`cpvt_backbones.weights.shipped_weights`);
                - public weights of docs/weights.md
                  (``'timm://vit_small_patch16_dinov3.lvd1689m'``, or a file under its published
                  name);
                - a folder of :meth:`Backbone.save_pretrained`, or ``'user/repository'`` or
                  ``'hf://user/repository'`` on the Hugging Face hub;
                - a folder or repository of transformers: ViT, DeiT, DINOv2, DINOv3, ViTDet, CLIP,
                  SigLIP, SAM;
                - any other file, address or work directory. The architecture is read from the
                  weights, and the log lists assumed values.

                In a config, ``init_cfg`` takes the name; the config gives the arguments.
            prefix: Load only keys with this prefix; ``None`` finds the prefix. Files with several
                models need it, such as ``'teacher'`` for DINO and iBOT.
            ema: Load the averaged weights that are stored beside the others.
            table_grid: Grid (height, width) of the weights' position embedding in tokens, or one
                pair per stage. Needed if the grid is not a square and the file does not contain it.
            arguments: Override the arguments that the weights were trained with, such as
                ``out_type='featmap'``.

        Raises:
            ValueError: The name is unknown, the weights belong to another class, ``config.json`` is
                invalid, or an argument must be passed because the weights do not show it.
            TypeError: ``name`` is not a path.
            FileNotFoundError, CheckpointError: See
                :func:`cpvt_backbones.checkpoints.load_checkpoint`.

        Examples:
            >>> from cpvt_backbones import CPVT
            >>> model = CPVT.from_pretrained('cpvt_tiny_gap-imagenette').eval()
            >>> model.embed_dims, model.depth
            (192, 12)
        """
        check_keywords(f'{cls.__name__}.from_pretrained', cls, arguments, positional=('init_cfg',))
        options: dict[str, Any] = dict(prefix=prefix, table_grid=table_grid, ema=ema or None)
        options = {key: value for key, value in options.items() if value is not None}
        check_path(name=name)
        given, name = str(name), _full_name(os.path.expanduser(name))
        try:
            config = stored_config(name)
        except CheckpointError as error:
            if name == given:
                raise
            fault = f'name: there is no file or folder {given!r}, and on the hub: {error}'
            raise CheckpointError(fault) from error
        exact = 'type' in config or name in shipped_weights()
        built, content = _description(
            name, config, arguments, prefix=prefix, ema=ema, table_grid=table_grid
        )
        kind = built.pop('type', None)
        fitting = [cls.__name__] if exact else [base.__name__ for base in cls.__mro__]
        if kind not in fitting:
            advice = f'{kind}.from_pretrained takes them'
            if ('Pyramid' in str(kind)) == any('Pyramid' in base.__name__ for base in cls.__mro__):
                advice = (
                    f"init_cfg=dict(type='Pretrained', checkpoint={name!r}) takes them where the"
                    ' blocks are the same'
                )
            raise InputError(
                f'name: {name!r} has weights of {kind}, not of {cls.__name__}; {advice}'
            )
        if not exact:  # MultiScaleCPVT takes a CPVT's arguments but for with_dist_token
            accepted = inspect.signature(cls).parameters
            built = {key: value for key, value in built.items() if key in accepted}
        init_cfg = dict(type='Pretrained', checkpoint=name, **options)
        model = cls(**{**built, **arguments, 'init_cfg': init_cfg})
        # Not init_weights(), which logs every parameter.
        load_checkpoint(model, name, content=content, **options)
        return model

    def save_pretrained(self, folder: str | PathLike[str]) -> None:
        """Write ``config.json`` (class and arguments) and ``model.safetensors``.

        :meth:`from_pretrained` reads the folder. If mean and standard deviation of the weights'
        images are known, ``preprocessor_config.json`` holds them, as in transformers.

        Raises:
            ValueError: The weights are not those of the class, for example of a fused model.

        Examples:
            >>> from cpvt_backbones import CPVT
            >>> CPVT(arch='tiny', num_registers=4).save_pretrained('mine')
            >>> CPVT.from_pretrained('mine').num_registers
            4
        """
        check_path(folder=folder)
        cls, weights = self._to_save()
        names = [name for name in inspect.signature(cls).parameters if name != 'init_cfg']
        arguments = {name: getattr(self, name) for name in names}
        with torch.device('meta'):
            wanted = cls(**arguments).state_dict()
        if wanted.keys() != weights.keys():
            raise InputError(
                f'the model must have the weights of a {cls.__name__}(**{arguments}), unfused'
            )
        with atomic_write(Path(folder, 'config.json')) as file:
            file.write(json.dumps(dict(type=cls.__name__, **arguments), indent=2).encode())
        write_checkpoint(weights, Path(folder, 'model.safetensors'), meta={})
        beside = Path(folder, PREPROCESSOR)
        if self.normalisation is None or not self.normalisation.rgb:
            beside.unlink(missing_ok=True)  # of weights that were here before
        else:
            with atomic_write(beside) as stream:
                stream.write(json.dumps(preprocessor_config(self.normalisation), indent=2).encode())

    def _to_save(self) -> tuple[Any, dict[str, Tensor]]:
        """Return the class and weights that :meth:`save_pretrained` writes."""
        return type(self), self.state_dict()

    def push_to_hub(self, repository: str, **options: Any) -> None:
        """Upload the files of :meth:`save_pretrained` to ``'user/repository'``.

        ``options`` are for creating the repository.
        """
        from huggingface_hub import create_repo, upload_folder

        with TemporaryDirectory() as folder:
            self.save_pretrained(folder)
            create_repo(repository, exist_ok=True, **options)
            upload_folder(repo_id=repository, folder_path=folder, token=options.get('token'))


def _full_name(name: str) -> str:
    """Put ``hf://`` before a repository's name; raise FileNotFoundError for a missing path."""
    if '://' in name or os.path.exists(name) or name in shipped_weights():
        return name
    is_file = name.lower().endswith(_SUFFIXES)
    if _HUB_NAME.fullmatch(name) and not is_file:
        return f'hf://{name}'
    if is_file or name.startswith(('.', '~')) or '/' in name or '\\' in name:
        accepted = "a repository of the Hugging Face hub is 'user/repository' or 'hf://...'"
        raise FileNotFoundError(f'name: there is no file or folder {name!r}; {accepted}')
    return name


def _description(
    name: str,
    config: dict[str, Any],
    arguments: Mapping[str, Any],
    *,
    prefix: str | None,
    ema: bool,
    table_grid: Any,
) -> tuple[dict[str, Any], Mapping[str, Any] | None]:
    """Find type and arguments of a named backbone, and its weights if these were read.

    The source is ``config.json`` of this package or of transformers, the name, or the weights.
    """
    built = named_backbone(name, config)
    if built is not None:
        return built, None
    if not os.path.exists(name) and '://' not in name and name not in published_weights():
        similar = similar_names(name) or similar_timm_names(name)
        raise InputError(
            f'name must be one of the weights that come with the package {list(shipped_weights())},'
            f" or 'timm://NAME', 'user/repository', a file or a folder, got {name!r}{similar}"
        )
    content = read_checkpoint(name)
    with naming_file(name):
        read, _ = recognise_backbone(content, config, prefix=prefix, ema=ema)
    if 'img_size' not in arguments:
        _take_grid(read, table_grid)
    return _complete(name, read, arguments), content


def _take_grid(read: Architecture, table_grid: Any) -> None:
    """Set ``img_size`` from the grid of the position embedding (of the first stage), if given.

    Loading the embedding refuses values other than pairs.
    """
    pair = table_grid[0] if table_grid and is_sequence(table_grid[0]) else table_grid
    if is_sequence(pair) and len(pair) == 2 and all(map(is_int, pair)) and min(pair) > 0:
        patch = read.arguments.get('patch_size', 4)
        read.arguments['img_size'] = (pair[0] * patch, pair[1] * patch)
        read.assumed = [one for one in read.assumed if not one.startswith('img_size=')]
        read.unclear.pop('img_size', None)


def _complete(name: str, read: Architecture, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return type and arguments; log assumed values, and raise ``ValueError`` for unclear ones."""
    missing = [f'{key}: {text}' for key, text in read.unclear.items() if key not in arguments]
    if missing:
        raise InputError(
            f'name: {name!r} ({read.source}) does not show every argument; pass'
            f' {"; ".join(missing)}'
        )
    shown = ', '.join(f'{key}={value!r}' for key, value in read.arguments.items())
    given = tuple(f'{key}=' for key in arguments)
    assumed = ', '.join(one for one in read.assumed if not one.startswith(given)) or 'none'
    print_log(
        f'{name}: {read.source}: {read.backbone}({shown}); no weight shows, so that the usual value'
        f' is assumed: {assumed}',
        'current',
    )
    return dict(type=read.backbone, **read.arguments)
