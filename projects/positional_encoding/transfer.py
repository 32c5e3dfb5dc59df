"""Dense transfer: segmentors and detectors with different position encodings, from scratch and from classifiers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mmengine.config import Config
from mmengine.runner import Runner

from cpvt_backbones.analysis.image_size import TestSize
from cpvt_backbones.analysis.resolution import SweepModel, main_metric, sweep
from cpvt_backbones.engine.launch import read_config

from .runs import RunFolder

STARTS = ('scratch', 'pretrained')


@dataclass(frozen=True)
class TransferPlan:
    """Settings that all runs share.

    Attributes:
        sizes: Factors of the config's test scale that each run is tested at.
        images: Number of test images, evenly spaced in the test set; ``None`` for all.
        cfg_options: Values to override in every config.
    """

    sizes: tuple[float, ...] = (0.5, 1.0, 1.5, 2.0)
    images: int | None = None
    cfg_options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class TransferRun:
    """One training.

    Attributes:
        task: Name of the task.
        encoding: Name of the position encoding.
        start: ``'scratch'`` or ``'pretrained'``.
        seed: Seed of weights, order, and augmentations.
    """

    task: str
    encoding: str
    start: str
    seed: int

    @property
    def name(self) -> str:
        """Name of the run's folder."""
        return f'{self.task}_{self.encoding}_{self.start}_seed-{self.seed}'


class Transfer(RunFolder):
    """Trainings of segmentors and detectors.

    An interrupted run starts again: a training that counts iterations cannot repeat its random numbers from the middle.

    Args:
        folder: Where the runs live.
        configs: Config file of each (task, encoding).
        pretrained: Weights of the classifier (``backbone.*``) of each (encoding, seed). Every seed has its own
            classifier, so that the spread over seeds includes the pretraining.
        seeds: Seeds of each task, encoding, and start.
        plan: Settings that all runs share.

    Raises:
        FileNotFoundError: A file of pretrained weights does not exist.
    """

    plan: TransferPlan
    plan_type = TransferPlan
    resumable = False

    def __init__(
        self,
        folder: Path,
        configs: Mapping[tuple[str, str], Path],
        pretrained: Mapping[tuple[str, int], Path],
        seeds: Sequence[int],
        plan: TransferPlan | None,
    ) -> None:
        for path in pretrained.values():
            if not path.is_file():
                raise FileNotFoundError(f'pretrained: there is no file {str(path)!r}')
        super().__init__(folder, plan)
        self.configs, self.pretrained, self.seeds = dict(configs), dict(pretrained), list(seeds)

    def pending(self) -> tuple[list[TransferRun], int]:
        runs = [
            TransferRun(task, encoding, start, seed)
            for seed in self.seeds
            for task, encoding in self.configs
            for start in STARTS
            if start == 'scratch' or (encoding, seed) in self.pretrained
        ]
        return [run for run in runs if self.record(run) is None], 0

    def config(self, run: TransferRun) -> Config:
        cfg = read_config(self.configs[run.task, run.encoding], cfg_options=self.plan.cfg_options)
        if run.start == 'pretrained':
            cfg.model.backbone.init_cfg = dict(
                type='Pretrained', checkpoint=str(self.pretrained[run.encoding, run.seed]), prefix='backbone.'
            )
        return cfg

    def evaluate(self, runner: Runner, cfg: Config, weights: Path) -> list[dict[str, Any]]:
        """Main metric of the config's evaluator at every size: ``mIoU`` (percent) or ``coco/bbox_mAP``."""
        cfg.model.backbone.pop('init_cfg', None)  # `weights` holds the whole model
        model = SweepModel(weights.parent.name, cfg, weights)
        sizes = [TestSize(factor=size) for size in self.plan.sizes]
        found = sweep([model], sizes, table=weights.with_name('sizes.csv'), limit=self.plan.images)
        metric = main_metric(found)
        return [
            dict(size=float(row.size), metric=metric, value=round(row.metrics[metric], 6), images=row.images)
            for row in found
        ]
