"""Models with weights: by name, in folders, on the Hugging Face hub."""

import inspect
import json
import os
import re
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from mmengine.model import BaseModule

from cpvt_backbones.checkpoints import (
    atomic_write,
    load_checkpoint,
    locate_checkpoint,
    public_backbone,
    read_json,
    sources,
    write_checkpoint,
)
from cpvt_backbones.weights import find_shipped


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
        locate = locate_checkpoint if name.startswith('hf://') else Path
        config = locate(f'{name}/config.json')
        saved = read_json(config) if config.is_file() else None
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
        load_checkpoint(model, name)  # not init_weights(), which logs every parameter
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
        with atomic_write(Path(folder, 'config.json')) as file:
            file.write(json.dumps(dict(type=type(self).__name__, **arguments), indent=2).encode())
        write_checkpoint(self.state_dict(), Path(folder, 'model.safetensors'), meta={})

    def push_to_hub(self, repository: str, **options: Any) -> None:
        """Upload what :meth:`save_pretrained` writes to ``'user/repository'``, created with
        ``options``.
        """
        with TemporaryDirectory() as folder:
            self.save_pretrained(folder)
            sources.upload(folder, repository, **options)
