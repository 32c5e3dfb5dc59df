"""Models that are loaded at first use, and requests that can be watched and stopped."""

import threading
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from mmengine.config import Config
from torch import nn

from cpvt_backbones.analysis.attention_maps import attention_layers
from cpvt_backbones.analysis.features import FeatureExtractor
from cpvt_backbones.inference import Inferencer, ToolboxPredictor
from cpvt_backbones.inference.inferencer import MAX_PIXELS
from cpvt_backbones.inference.sizes import Scale
from cpvt_backbones.layers import Attention, SpatialReductionAttention
from cpvt_backbones.toolboxes import read_config
from cpvt_backbones.weights import ShippedWeights, shipped_weights

SMALLEST_TILE = 128  # px


class Stopped(BaseException):
    """The request was stopped.

    Not an ``Exception``, which the inferencer would turn into a result.
    """


class Job:
    """One request: what it does now, and whether it is to stop."""

    def __init__(self) -> None:
        self.stop = threading.Event()
        self.state: dict[str, Any] = dict(state='waiting')
        self.grids: list[tuple[int, int]] = []  # of the tokens, in order of the stages

    def check(self) -> None:
        """Raise ``Stopped`` if the request was stopped."""
        if self.stop.is_set():
            raise Stopped

    def tell(self, state: str, **numbers: int) -> None:
        """Say what is done now."""
        self.check()
        self.state = dict(state=state, **numbers)


@dataclass
class Model:
    """One model of the page; all but its texts is used by the worker's thread only."""

    name: str
    about: str
    cfg: Config | str  # or its file
    checkpoint: str
    device: str | None
    job: Job | None = None  # which the model works for

    @cached_property
    def _cfg(self) -> Config:
        return read_config(self.cfg) if isinstance(self.cfg, str) else self.cfg

    @cached_property
    def predictor(self) -> ToolboxPredictor:
        """The model with its weights; it stops between two layers."""
        predictor = ToolboxPredictor(cfg=self._cfg, checkpoint=self.checkpoint, device=self.device)
        self._watch(predictor.model)
        return predictor

    @cached_property
    def extractor(self) -> FeatureExtractor:
        """The backbone with its weights."""
        extractor = FeatureExtractor(self._cfg, self.checkpoint)
        self._watch(extractor)
        return extractor

    def inferencer(self, *, scale: Scale, tile: int) -> Inferencer:
        """The model at one size.

        ``tile`` is the side of tiles in px, 0 for tiles of the largest images only.
        """
        if 0 < tile < SMALLEST_TILE:  # their number would have no bound
            raise ValueError(f'tile must be 0 or at least {SMALLEST_TILE} px, got {tile}')
        tiles = (
            dict(max_pixels=tile * tile, tile_size=tile, overlap=tile // 4)
            if tile
            else dict(max_pixels=MAX_PIXELS)
        )
        return Inferencer(predictor=self.predictor, scale=scale, **tiles)

    def _watch(self, model: nn.Module) -> None:
        def stop(*_: Any) -> None:
            if self.job is not None:
                self.job.check()

        def record(_: nn.Module, arguments: tuple[Any, ...]) -> None:
            if self.job is not None and len(arguments) > 1 and arguments[1] not in self.job.grids:
                self.job.grids.append(arguments[1])

        for module in model.modules():
            if not [*module.children()]:
                module.register_forward_pre_hook(stop)
        for module in attention_layers(model).values():
            if isinstance(module, (Attention, SpatialReductionAttention)):
                module.register_forward_pre_hook(record)


def list_models(*, device: str | None, given: tuple[Config, str] | None = None) -> dict[str, Model]:
    """The models of the page by name, the default first: that of ``given`` (config, checkpoint),
    the shipped ones.
    """
    models = [
        Model(entry.name, entry.about, str(entry.config_file), entry.name, device)
        for entry in _shipped()
    ]
    if given is not None:
        cfg, checkpoint = given
        about = f'{Path(cfg.filename).name}, given on the command line'
        models.insert(0, Model(Path(checkpoint).name, about, cfg, checkpoint, device))
    return {model.name: model for model in models}


def _shipped() -> list[ShippedWeights]:
    # Boxes say most at a first look.
    return sorted(
        shipped_weights().values(), key=lambda entry: ('retinanet' not in entry.name, entry.name)
    )
