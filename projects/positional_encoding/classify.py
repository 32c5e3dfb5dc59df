"""Classifiers with different position encodings: each is trained alike and tested at several image sizes."""

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from mmengine.runner import Runner, TestLoop
from PIL import Image
from torch.utils.benchmark import Timer

from cpvt_backbones.analysis.equivariance import measure_equivariance
from cpvt_backbones.analysis.features import FeatureExtractor
from cpvt_backbones.engine.launch import read_config, use_amp

from .runs import RunFolder

SHIFT_IMAGES = 200
"""Test images that the shift error is measured on, evenly spaced."""


@dataclass(frozen=True)
class ClassifyPlan:
    """Settings that all trainings share.

    Attributes:
        epochs: Length of each training.
        batch_size: Images in a training iteration.
        train_size: Side in pixels that the configs train at.
        sizes: Sides in pixels that each run is tested at, without fine-tuning.
        rate_factors: Learning rates of the ``tuned`` variants, relative to the config's, each tried on the first seed;
            the best one at ``train_size`` is used for all seeds.
        tuned: Variants whose learning rate is chosen.
        data_root: Folder of the images.
        amp_dtype: ``'bfloat16'`` or ``'float16'`` for mixed precision, else ``None``.
    """

    epochs: int
    batch_size: int
    train_size: int
    sizes: tuple[int, ...]
    rate_factors: tuple[float, ...]
    tuned: tuple[str, ...]
    data_root: str
    amp_dtype: str | None = None

    def __post_init__(self) -> None:
        if self.epochs < 1:
            raise ValueError(f'epochs must be at least 1, got {self.epochs!r}')
        if self.train_size not in self.sizes:
            raise ValueError(f'sizes must contain the training size, {self.train_size}, got {self.sizes}')
        if 1.0 not in self.rate_factors:
            raise ValueError(f"rate_factors must contain 1.0, the config's own rate, got {self.rate_factors}")


@dataclass(frozen=True)
class ClassifyRun:
    """One training.

    Attributes:
        variant: Name of the config.
        seed: Seed of weights, order, and crops.
        rate_factor: Factor of the config's learning rate.
    """

    variant: str
    seed: int
    rate_factor: float = 1.0

    @property
    def name(self) -> str:
        """Name of the run's folder."""
        rate = '' if self.rate_factor == 1 else f'_rate-x{self.rate_factor:g}'
        return f'{self.variant}{rate}_seed-{self.seed}'


class Classification(RunFolder):
    """Trainings of classifiers.

    Args:
        folder: Where the runs live.
        configs: Config file of each variant.
        seeds: Seeds of each variant, the most important variant first.
        plan: Settings that all runs share; ``None`` continues with the folder's.
    """

    plan: ClassifyPlan
    plan_type = ClassifyPlan
    resumable = True

    def __init__(
        self, folder: Path, configs: Mapping[str, Path], seeds: Mapping[str, Sequence[int]], plan: ClassifyPlan | None
    ) -> None:
        super().__init__(folder, plan)
        self.configs, self.seeds = dict(configs), dict(seeds)

    def best_rate(self, variant: str) -> float | None:
        """Rate factor of a variant's seeds; ``None`` until the rates have been compared."""
        if variant not in self.plan.tuned:
            return 1.0
        scores = {}
        for run in self._rate_trials(variant):
            record = self.record(run)
            if record is None:
                return None
            scores[run.rate_factor] = next(r['top1'] for r in record['rows'] if r['size'] == self.plan.train_size)
        return max(scores, key=scores.__getitem__)

    def pending(self) -> tuple[list[ClassifyRun], int]:
        runs = list(self._in_order())
        ready = [run for run in dict.fromkeys(runs) if run is not None and self.record(run) is None]
        return ready, runs.count(None)

    def _rate_trials(self, variant: str) -> list[ClassifyRun]:
        return [ClassifyRun(variant, self.seeds[variant][0], factor) for factor in self.plan.rate_factors]

    def _in_order(self) -> Iterator[ClassifyRun | None]:
        """All runs; ``None`` for one whose rate is not known yet."""
        # Seed by seed, so that an unfinished study has every variant.
        for turn in range(max(map(len, self.seeds.values()), default=0)):
            for variant, seeds in self.seeds.items():
                if turn == 0 and variant in self.plan.tuned:
                    yield from self._rate_trials(variant)
                elif turn < len(seeds):
                    rate = self.best_rate(variant)
                    yield None if rate is None else ClassifyRun(variant, seeds[turn], rate)

    def config(self, run: ClassifyRun) -> Config:
        plan, cfg = self.plan, read_config(self.configs[run.variant])
        cfg.train_cfg = dict(by_epoch=True, max_epochs=plan.epochs)
        cfg.param_scheduler[-1].end = plan.epochs
        if plan.epochs <= cfg.param_scheduler[-1].begin:  # a smoke test has no time for a warm-up
            cfg.param_scheduler = [dict(cfg.param_scheduler[-1], begin=0)]
        cfg.optim_wrapper.optimizer.lr *= run.rate_factor
        cfg.train_dataloader.batch_size = plan.batch_size
        for loader in (cfg.train_dataloader, cfg.test_dataloader):
            loader.dataset.data_root = plan.data_root
        cfg.default_hooks.checkpoint = dict(type='DurableCheckpointHook', interval=1, max_keep_ckpts=1)
        if plan.amp_dtype:
            use_amp(cfg, plan.amp_dtype)
        return cfg

    def evaluate(self, runner: Runner, cfg: Config, weights: Path) -> list[dict[str, Any]]:
        """Top-1 accuracy in percent at every size, and the shift error at the training size."""
        rows: list[dict[str, Any]] = []
        for size in self.plan.sizes:
            rows.append(dict(epochs=self.plan.epochs, size=size, top1=test_at(runner, cfg, size), shift_error=None))
            if size == self.plan.train_size:
                paths = [sample['img_path'] for sample in runner.test_loop.dataloader.dataset.load_data_list()]
                rows[-1]['shift_error'] = shift_error(FeatureExtractor(cfg, weights), paths, size)
        return rows


def test_at(runner: Runner, cfg: Config, size: int) -> float:
    """Top-1 accuracy in percent of a runner's model on the config's test set, resized to squares of ``size`` px."""
    loader = copy.deepcopy(cfg.test_dataloader)
    resizes = [step for step in loader.dataset.pipeline if step['type'] == 'Resize']
    if len(resizes) != 1:
        raise ValueError(f'test_dataloader: its pipeline must have one Resize, got {len(resizes)}')
    resizes[0]['scale'] = (size, size)
    runner._test_loop = TestLoop(runner, loader, cfg.test_evaluator)
    return round(float(runner.test_loop.run()['accuracy/top1']), 3)


def shift_error(model: FeatureExtractor, paths: Sequence[str], size: int) -> float:
    """Deviation of the features of crops one patch apart (:func:`measure_equivariance`), on some of the images."""
    stride = int(model.backbone.out_strides[-1])  # type: ignore[index]
    side, count = size + stride, min(SHIFT_IMAGES, len(paths))  # objects as large as in the test
    opened = [Image.open(paths[i * len(paths) // count]).convert('RGB') for i in range(count)]
    pictures = [np.asarray(image.resize((side, side), Image.Resampling.BICUBIC)) for image in opened]
    (found,) = measure_equivariance(model, model.normalise(pictures), size=size, shifts=[stride])
    return round(found.error, 5)


def epochs_within(minutes: float, config: Path, plan: ClassifyPlan, *, runs: int, images: Mapping[str, int]) -> int:
    """Number of epochs that fit in a time budget, testing included, on this machine in one process.

    Args:
        minutes: Time for all runs.
        config: The config that is timed.
        plan: Settings; its epochs are ignored.
        runs: Number of trainings.
        images: Number of images in ``'train'`` and ``'val'``.

    Raises:
        ValueError: Not even one epoch fits.
    """
    seconds = seconds_per_iteration(config, plan)
    # In iterations; a forward pass takes about a third of one.
    testing = images['val'] / plan.batch_size * sum((size / plan.train_size) ** 2 for size in plan.sizes) / 3
    epoch = images['train'] // plan.batch_size
    epochs = int((minutes * 60 / seconds / runs - testing) / epoch)
    if epochs < 1:
        needed = (testing + epoch) * runs * seconds / 60
        raise ValueError(f'--budget: one epoch of {runs} runs takes about {needed:.0f} minutes, got {minutes:g}')
    return epochs


def seconds_per_iteration(config: Path, plan: ClassifyPlan) -> float:
    """Time of a training iteration of a config's backbone on random images: the fastest of six."""
    cfg = read_config(config)
    init_default_scope(cfg.default_scope)
    device = 'cuda' if torch.cuda.is_available() else 'cpu'
    backbone = MODELS.build(cfg.model.backbone).to(device)
    images = torch.randn(plan.batch_size, 3, plan.train_size, plan.train_size, device=device)
    step = Timer(
        'backbone(images)[-1].square().mean().backward()',
        globals=dict(backbone=backbone, images=images),
        num_threads=torch.get_num_threads(),
    )
    return min(measurement.median for measurement in (step.timeit(1) for _ in range(6)))
