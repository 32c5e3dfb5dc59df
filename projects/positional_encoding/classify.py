"""Classifiers with different position encodings: each is trained alike and tested at several image
sizes.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from mmengine.runner import Runner
from PIL import Image
from torch.utils.benchmark import Timer

from cpvt_backbones.analysis.equivariance import measure_equivariance
from cpvt_backbones.analysis.features import FeatureExtractor
from cpvt_backbones.analysis.image_size import TestSize
from cpvt_backbones.engine.launch import use_amp
from cpvt_backbones.toolboxes import read_config

from .runs import TrainingFolder, test_sizes
from .variants import data_options

TUNING = 'meta/tune.txt'
SHIFT_IMAGES = 200
"""Number of test images that the shift error is measured on."""


class ClassifyRun(NamedTuple):
    """One training; ``seed`` is that of weights, order, and crops."""

    variant: str
    seed: int
    rate_factor: float = 1.0

    @property
    def name(self) -> str:
        """Name of the run's folder."""
        rate = '' if self.rate_factor == 1 else f'_rate-x{self.rate_factor:g}'
        return f'{self.variant}{rate}_seed-{self.seed}'


@dataclass
class Classification(TrainingFolder):
    """Trainings of classifiers.

    Args:
        plan: ``epochs`` and ``batch_size`` of each training, ``sizes`` (sides in px that each run
            is tested at without fine-tuning, the first one that of the training), ``data_root``,
            ``amp_dtype`` (``'bfloat16'`` or ``'float16'`` for mixed precision, else ``None``), and
            ``data_set``, by default ``'imagenette'``.
        configs: Config file of each variant.
        seeds: Seeds of each variant, the most important variant first.
        rate_factors: Learning rates of each variant, relative to the config's.
    """

    seeds: Mapping[str, Sequence[int]]
    rate_factors: Mapping[str, Sequence[float]]
    resumable = True

    def best_rate(self, variant: str) -> float | None:
        """Rate factor of a variant's seeds; ``None`` until the rates have been compared."""
        trials = self._rate_trials(variant)
        if len(trials) == 1:
            return trials[0].rate_factor
        firsts = {
            run.rate_factor: record['rows'][0] for run in trials if (record := self.record(run))
        }
        scores = {rate: row.get('tuning', row['top1']) for rate, row in firsts.items()}
        return max(scores, key=scores.__getitem__) if len(scores) == len(trials) else None

    def pending(self) -> tuple[list[ClassifyRun], int]:
        runs = list(self._in_order())
        ready = [run for run in dict.fromkeys(runs) if run is not None and self.record(run) is None]
        return ready, runs.count(None)

    def _rate_trials(self, variant: str) -> list[ClassifyRun]:
        return [
            ClassifyRun(variant, self.seeds[variant][0], factor)
            for factor in self.rate_factors[variant]
        ]

    def _in_order(self) -> Iterator[ClassifyRun | None]:
        """All runs; ``None`` for one whose rate is not known yet."""
        # Seed by seed, so that an unfinished study has every variant.
        for turn in range(max(map(len, self.seeds.values()))):
            for variant, seeds in self.seeds.items():
                if turn == 0:
                    yield from self._rate_trials(variant)
                elif turn < len(seeds):
                    rate = self.best_rate(variant)
                    yield None if rate is None else ClassifyRun(variant, seeds[turn], rate)

    def config(self, run: ClassifyRun) -> Config:
        plan = self.plan
        options = data_options(plan.get('data_set', 'imagenette'))
        cfg = read_config(self.configs[run.variant], cfg_options=options)
        cfg.train_cfg = dict(by_epoch=True, max_epochs=plan['epochs'])
        cfg.param_scheduler[-1].end = plan['epochs']
        if (
            plan['epochs'] <= cfg.param_scheduler[-1].begin
        ):  # a smoke test has no time for a warm-up
            cfg.param_scheduler = [dict(cfg.param_scheduler[-1], begin=0)]
        cfg.optim_wrapper.optimizer.lr *= run.rate_factor
        cfg.train_dataloader.batch_size = plan['batch_size']
        for loader in (cfg.train_dataloader, cfg.test_dataloader):
            loader.dataset.data_root = plan['data_root']
        cfg.default_hooks.checkpoint = dict(
            type='DurableCheckpointHook', interval=1, max_keep_ckpts=1
        )
        if plan['amp_dtype']:
            use_amp(cfg, plan['amp_dtype'])
        return cfg

    def evaluate(self, cfg: Config, weights: Path) -> list[dict[str, Any]]:
        """Top-1 accuracy in percent at every size, and the shift error at the training size.

        A data set with images for the choice of rates has its accuracy on these, too: ``tuning``.
        """
        sizes, epochs = self.plan['sizes'], self.plan['epochs']
        tuned: dict[str, float] = {}
        if (Path(self.plan['data_root']) / TUNING).exists():
            tuning = copy.deepcopy(cfg)
            tuning.test_dataloader.dataset.ann_file = TUNING
            (row,) = test_sizes(tuning, weights, [TestSize(side=sizes[0])])
            tuned = dict(tuning=round(row.metrics['accuracy/top1'], 3))
        found = test_sizes(cfg, weights, [TestSize(side=size) for size in sizes])
        paths = [
            sample['img_path']
            for sample in Runner.build_dataloader(cfg.test_dataloader).dataset.load_data_list()
        ]
        errors = [
            shift_error(FeatureExtractor(cfg, weights), paths, sizes[0]),
            *[None] * (len(sizes) - 1),
        ]
        return [
            dict(
                epochs=epochs,
                size=size,
                top1=round(row.metrics['accuracy/top1'], 3),
                shift_error=error,
            )
            | tuned
            for size, row, error in zip(sizes, found, errors, strict=True)
        ]


def shift_error(model: FeatureExtractor, paths: Sequence[str], size: int) -> float:
    """Deviation of the features of crops one patch apart (:func:`measure_equivariance`)."""
    stride = int(model.backbone.out_strides[-1])
    side, count = size + stride, min(SHIFT_IMAGES, len(paths))  # objects as large as in the test
    opened = [Image.open(paths[i * len(paths) // count]).convert('RGB') for i in range(count)]
    pictures = [
        np.asarray(image.resize((side, side), Image.Resampling.BICUBIC)) for image in opened
    ]
    (found,) = measure_equivariance(
        model, model.normalise(pictures), size=size, shifts=[stride], stride=stride
    )
    return round(found.error, 5)


def epochs_within(
    minutes: float, config: Path, plan: Mapping[str, Any], *, runs: int, train: int, val: int
) -> int:
    """Number of epochs that fit in a time budget, testing included, on this machine in one process.

    Args:
        minutes: Time for all ``runs``.
        config: The config that is timed.
        plan: Of the study; its epochs are ignored.
        runs: Number of trainings.
        train, val: Numbers of images.

    Raises:
        ValueError: Not even one epoch fits.
    """
    sizes, batch_size = plan['sizes'], plan['batch_size']
    seconds = seconds_per_iteration(config, batch_size, sizes[0])
    # In iterations; a forward pass takes about a third of one.
    testing = val / batch_size * sum((size / sizes[0]) ** 2 for size in sizes) / 3
    epoch = train // batch_size
    epochs = int((minutes * 60 / seconds / runs - testing) / epoch)
    if epochs < 1:
        needed = (testing + epoch) * runs * seconds / 60
        raise ValueError(
            f'--budget: one epoch of {runs} runs takes about {needed:.0f} minutes, got {minutes:g}'
        )
    return epochs


def seconds_per_iteration(config: Path, batch_size: int, size: int) -> float:
    """Time of a training iteration of a config's backbone on random images: the fastest of six."""
    cfg = read_config(config)
    init_default_scope(cfg.default_scope)
    device = 'cuda' if torch.cuda.is_available() else 'cpu'
    backbone = MODELS.build(cfg.model.backbone).to(device)
    images = torch.randn(batch_size, 3, size, size, device=device)
    names, threads = dict(backbone=backbone, images=images), torch.get_num_threads()
    step = Timer(
        'backbone(images)[-1].square().mean().backward()', globals=names, num_threads=threads
    )
    return min(step.timeit(1).median for _ in range(6))
