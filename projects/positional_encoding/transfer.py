"""Dense transfer: segmentors and detectors with different position encodings, from scratch and from
classifiers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from mmengine.config import Config

from cpvt_backbones.analysis.image_size import TestSize
from cpvt_backbones.analysis.resolution import main_metric
from cpvt_backbones.toolboxes import read_config

from .runs import TrainingFolder, test_sizes

STARTS = ('scratch', 'pretrained')


class TransferRun(NamedTuple):
    """One training; ``start`` is one of ``STARTS``, ``seed`` that of weights, order, and
    augmentations.
    """

    task: str
    encoding: str
    start: str
    seed: int

    @property
    def name(self) -> str:
        """Name of the run's folder."""
        return f'{self.task}_{self.encoding}_{self.start}_seed-{self.seed}'


@dataclass
class Transfer(TrainingFolder):
    """Trainings of segmentors and detectors.

    An interrupted run starts again: a training that counts iterations cannot repeat its random
    numbers from the middle.

    Args:
        plan: ``sizes`` (factors of the config's test scale that each run is tested at) and
            ``images`` (number of test images, evenly spaced in the test set; ``None`` for all).
        configs: Config file of each (task, encoding).
        pretrained: Weights of the classifier (``backbone.*``) of each (encoding, seed). Every seed
            has its own classifier, so that the spread over seeds includes the pretraining.
        seeds: Seeds of each task, encoding, and start.

    Raises:
        FileNotFoundError: A file of pretrained weights does not exist.
    """

    pretrained: Mapping[tuple[str, int], Path]
    seeds: Sequence[int]
    resumable = False

    def __post_init__(self) -> None:
        for path in self.pretrained.values():
            if not path.is_file():
                raise FileNotFoundError(f'pretrained: there is no file {str(path)!r}')
        super().__post_init__()

    def pending(self) -> tuple[list[TransferRun], int]:
        keys = [
            (*key, start, seed) for seed in self.seeds for key in self.configs for start in STARTS
        ]
        runs = [TransferRun(*key) for key in keys]
        return [run for run in runs if self.record(run) is None], 0

    def config(self, run: TransferRun) -> Config:
        cfg = read_config(self.configs[run.task, run.encoding])
        if run.start == 'pretrained':
            weights = str(self.pretrained[run.encoding, run.seed])
            cfg.model.backbone.init_cfg = dict(
                type='Pretrained', checkpoint=weights, prefix='backbone.'
            )
        return cfg

    def evaluate(self, cfg: Config, weights: Path) -> list[dict[str, Any]]:
        """Main metric of the config's evaluator at every size: ``mIoU`` (percent) or
        ``coco/bbox_mAP``.
        """
        cfg.model.backbone.pop('init_cfg', None)  # `weights` holds the whole model
        sizes = [TestSize(factor=size) for size in self.plan['sizes']]
        found = test_sizes(cfg, weights, sizes, images=self.plan['images'])
        metric = main_metric(found)
        return [
            dict(
                size=float(r.size),
                metric=metric,
                value=round(r.metrics[metric], 6),
                images=r.images,
            )
            for r in found
        ]
