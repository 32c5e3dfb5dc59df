"""The runs of the experiment: train, test on held-out images, answer the sealed images, and train
a segmentor.
"""

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from filelock import FileLock
from mmengine.config import Config
from mmengine.device import get_device
from mmengine.optim import build_optim_wrapper
from mmengine.registry import MODELS, init_default_scope
from mmengine.runner import Runner
from mmpretrain.structures import DataSample
from positional_encoding.runs import Record, TrainingFolder, test_sizes
from torch import nn

from benchmarks import instructions, processor
from cpvt_backbones import CPVT
from cpvt_backbones.analysis.image_size import TestSize
from cpvt_backbones.checkpoints import atomic_write, load_weights
from cpvt_backbones.engine.launch import use_amp
from cpvt_backbones.toolboxes import read_config
from cpvt_backbones.weights import shipped_file

from .images import accuracy, answer, listed_images, sealed_images, sealed_labels, write_lists
from .protocol import FINAL, POSITIONS, Choice, Run, choose_row, order, plan_digest

CONFIGS = Path(__file__).resolve().parent / 'configs'
ROOT = Path(__file__).resolve().parents[2]
SHIPPED = {'cpvt_tiny_gap-imagenette': 'cpvt-tiny-gap_imagenette.py'}
"""Shipped classifiers that answer the sealed images, too, and their configs."""
SHIPPED_SIZES = (56, 80, 112, 160, 224)


@dataclass(frozen=True)
class Files:
    """Where the experiment finds its data.

    Args:
        data: Folder of ``imagenette``, ``tiny-imagenet-100`` and ``camvid``.
        sealed: Zip of the sealed test images.
        teacher: Checkpoint that ``tools/make_teacher.py`` wrote.
        rows: CSV of the finished runs.
    """

    data: Path
    sealed: Path
    teacher: Path
    rows: Path

    def check(self) -> None:
        """``FileNotFoundError`` for what is missing."""
        folders = [self.data / name for name in ('imagenette', 'tiny-imagenet-100', 'camvid')]
        for flag, path in [
            *(('--data', folder) for folder in folders),
            ('--sealed', self.sealed),
            ('--teacher', self.teacher),
        ]:
            if not path.exists():
                raise FileNotFoundError(f'{flag}: there is no {str(path)!r}')


def read_rows(file: Path) -> pd.DataFrame:
    """Rows of the finished runs."""
    if not file.is_file():
        return pd.DataFrame(columns=[*Run._fields])
    return pd.read_csv(file, dtype={'precision': str, 'plan': str})


def add_row(file: Path, row: dict[str, Any]) -> None:
    """Append a run's row; other processes may append theirs."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(file.with_suffix('.lock')):
        table = pd.concat([read_rows(file).astype(object), pd.DataFrame([row]).astype(object)])
        with atomic_write(file) as stream:
            table.to_csv(stream, index=False)


@dataclass
class SizeExperiment(TrainingFolder):
    """Runs of the protocol, each a row of a CSV once it is finished.

    A row is all that a finished run needs to leave: it holds the answers to the sealed images, not
    their accuracy.

    Args:
        plan: See ``protocol.PLAN``.
        configs: ``classifier`` and ``segmentor``.
        files: Data and rows.
        runs: Number of runs of this process; ``None`` for all that are left.
        any_processor: Accept another kind of processor than that of the stage's first row.

    Raises:
        ValueError: The rows are of another plan, or those of the stage that goes on are of another
            kind of processor.
    """

    files: Files
    runs: int | None = None
    any_processor: bool = False
    resumable = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.finished = 0
        rows = read_rows(self.files.rows)
        if len(rows) and set(rows['plan']) != {plan_digest(self.plan)}:
            raise ValueError(
                f'--rows: {self.files.rows} has rows of the plans {sorted(set(rows["plan"]))},'
                f' got {plan_digest(self.plan)}'
            )
        for run in order(rows, self.plan)[0][:1]:
            kinds = set(rows[rows['stage'] == run.stage].get('kind', []))
            if kinds and kind_of_processor() not in kinds and not self.any_processor:
                raise ValueError(
                    f'--any-processor: the finished {run.stage} runs are of {sorted(kinds)}, this'
                    f' is {kind_of_processor()!r}; one kind a stage is part of the protocol'
                )

    def pending(self) -> tuple[list[Run], int]:
        if self.runs is not None and self.finished >= self.runs:
            return [], 0
        return order(read_rows(self.files.rows), self.plan)

    def record(self, run: Run) -> Record | None:
        rows = read_rows(self.files.rows)
        for row in rows.to_dict('records'):
            if all(row[name] == value for name, value in run._asdict().items()):
                return dict(row)
        return None

    def config(self, run: Run) -> Config:
        plan = self.plan
        dims = CPVT(arch=plan['arch'], with_cls_token=False).embed_dims
        cfg = read_config(self.configs['classifier'])
        cfg.model.teacher = str(self.files.teacher)
        cfg.model.sizes = [plan['train_size']]
        cfg.model.head.in_channels = dims
        cfg.model.backbone.update(
            arch=plan['arch'],
            img_size=plan['train_size'],
            out_indices=plan['taps'],
            position=POSITIONS[run.form],
        )
        labelled, others = cfg.train_dataloader.dataset.datasets
        lists = self.folder / 'lists'
        train, _ = write_lists(self.files.data / 'imagenette', lists, plan['held_out_every'])
        labelled.update(ann_file=str(train.resolve()), views=plan['views'])
        for name, dataset in (('imagenette', labelled), ('tiny-imagenet-100', others)):
            dataset.update(
                data_root=str(self.files.data / name),
                cache_dir=str(self.folder / 'stored' / name),
                teacher=str(self.files.teacher),
                teacher_size=plan['teacher_size'],
            )
        cfg.train_dataloader.batch_size = plan['batch_size']
        cfg.train_dataloader.sampler.length = plan['steps'] * plan['batch_size']
        epochs = self.epochs(run)
        cfg.train_cfg = dict(by_epoch=True, max_epochs=epochs)
        cfg.optim_wrapper.optimizer.lr = run.rate
        warm_up, cosine = cfg.param_scheduler
        warm_up.update(begin=0, end=1)
        cosine.update(begin=1, end=epochs, eta_min=run.rate / 100)
        use_amp(cfg, plan['precision'])
        ready, waiting = order(read_rows(self.files.rows), plan)
        after = [self.epochs(other) for other in ready if other != run]
        progress = dict(
            type='ProgressLine',
            name=run.name,
            epochs_after=sum(after) + waiting * plan['epochs'],
        )
        cfg.custom_hooks = [*cfg.get('custom_hooks', []), progress]
        return cfg

    def epochs(self, run: Run) -> int:
        """Length of a run."""
        length: int = self.plan['epochs' if run.stage == FINAL else 'rate_epochs']
        return length

    def evaluate(self, cfg: Config, weights: Path) -> list[dict[str, Any]]:
        """One row: held-out accuracy in percent at each size, and for a final run the answers to
        the sealed images, a digit each, and mIoU in percent.
        """
        model = trained(cfg, weights)
        held_out = listed_images(
            self.files.data / 'imagenette', self.folder / 'lists' / 'held_out.txt'
        )
        row: dict[str, Any] = {}
        for size in self.plan['sizes']:
            row[f'held_{size}'] = accuracy(answer(model, held_out[0], size), held_out[1])
        if cfg.train_cfg.max_epochs < self.plan['epochs']:
            return [row]
        images = sealed_images(self.files.sealed)
        for size in self.plan['sizes']:
            # A letter before the digits, so that every reader of CSV takes them for text.
            row[f'answers_{size}'] = 'a' + ''.join(map(str, answer(model, images, size)))
        return [row | self._segment(cfg, weights)]

    def _segment(self, cfg: Config, weights: Path) -> dict[str, float]:
        plan = self.plan
        dense = read_config(self.configs['segmentor'])
        trunk = cfg.model.backbone
        dense.model.backbone.update(
            {key: trunk[key] for key in ('arch', 'patch_size', 'img_size', 'position')},
            frozen_stages=CPVT(arch=plan['arch']).depth,
            init_cfg=dict(type='Pretrained', checkpoint=str(weights), prefix='backbone.'),
        )
        init_default_scope(dense.default_scope)
        dense.model.neck.in_channels = list(MODELS.build(dense.model.backbone).out_channels)
        for loader in (dense.train_dataloader, dense.test_dataloader):
            loader.dataset.data_root = str(self.files.data / 'camvid')
        iterations = plan['dense_iterations']
        dense.train_cfg = dict(type='IterBasedTrainLoop', max_iters=iterations)
        warm_up, cosine = dense.param_scheduler
        warm_up.end = cosine.begin = iterations // 4
        cosine.update(T_max=iterations - iterations // 4, end=iterations)
        use_amp(dense, plan['precision'])
        dense.default_hooks.checkpoint = dict(type='CheckpointHook', interval=-1, save_last=False)
        dense.randomness = cfg.randomness
        dense.work_dir = str(weights.parent / 'segmentor')
        dense.experiment_name = f'{weights.parent.name}_segmentor_{time.time_ns()}'
        runner = Runner.from_cfg(dense)
        runner.train()
        finished = weights.parent / 'segmentor' / 'weights.pth'
        torch.save({'state_dict': runner.model.state_dict()}, finished)
        dense.model.backbone.pop('init_cfg')
        sizes = plan['dense_sizes']
        found = test_sizes(dense, finished, [TestSize(factor=size) for size in sizes])
        return {
            f'miou_{size:g}': round(row.metrics['mIoU'], 3)
            for size, row in zip(sizes, found, strict=True)
        }

    def _train(self, run: Run) -> Record:
        record = super()._train(run)
        found = record['environment']
        row = dict(
            **run._asdict(),
            plan=plan_digest(self.plan),
            kind=kind_of_processor(),
            processor=found['processor'],
            precision=self.plan['precision'],
            commits=record['commits'],
            python=found['Python'].split()[0],
            torch=found['PyTorch'],
            **record['rows'][0],
        )
        add_row(self.files.rows, row)
        self.finished += 1
        return row

    def chosen(self) -> dict[str, Choice | None]:
        """Form and rate of each row."""
        rows = read_rows(self.files.rows)
        return {row: choose_row(rows, row, self.plan) for row in ('none', 'table', 'peg', 'rope')}


def kind_of_processor() -> str:
    """Name of the GPU; without one, name and instructions of the processor."""
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    return f'{processor().rsplit(",", 1)[0]}, {instructions()}'


def trained(cfg: Config, weights: Any) -> nn.Module:
    """A classifier with its weights and data preprocessor, in fp32, on a GPU if there is one."""
    init_default_scope('mmpretrain')
    preprocessor = dict(cfg.data_preprocessor, type='ClsDataPreprocessor', batch_augments=None)
    model = MODELS.build(dict(cfg.model, data_preprocessor=preprocessor))
    load_weights(model, weights, strict=True)
    return model.eval().to(get_device())


def read_sealed(rows: Path, sealed: Path, plan: dict[str, Any], out: Path) -> pd.DataFrame:
    """Compare the answers of all final runs, and of the shipped classifiers, with the classes of
    the sealed images, once.

    Args:
        rows: CSV of the finished runs.
        sealed: Zip of the images.
        plan: Of the runs.
        out: CSV of the accuracies; it must not exist.

    Raises:
        FileExistsError: ``out`` exists.
        ValueError: A final run is not finished.
    """
    if out.exists():
        raise FileExistsError(
            f'--out: {str(out)!r} exists: the sealed images were read, and are read once'
        )
    table = read_rows(rows)
    if not len(table):
        raise ValueError(f'--rows: {rows} has no finished run')
    ready, waiting = order(table, plan)
    if ready or waiting:
        missing = [run.name for run in ready] + ['...'] * bool(waiting)
        raise ValueError(f'--rows: {rows} lacks {len(ready) + waiting} runs: {", ".join(missing)}')
    labels = sealed_labels(sealed)
    found = []
    for row in table[table['stage'] == FINAL].to_dict('records'):
        run = Run(*(row[name] for name in Run._fields))
        for size in plan['sizes']:
            answers = list(map(int, row[f'answers_{size}'][1:]))
            entry = dict(row=run.row, form=run.form, seed=run.seed, size=size)
            found.append(entry | dict(top1=accuracy(answers, labels)))
    images = sealed_images(sealed)
    for name, config in SHIPPED.items():
        model = shipped_classifier(name, config)
        for size in SHIPPED_SIZES:
            entry = dict(row=name, form='peg', seed=0, size=size)
            found.append(entry | dict(top1=accuracy(answer(model, images, size), labels)))
    results = pd.DataFrame(found)
    with atomic_write(out) as stream:
        results.to_csv(stream, index=False)
    return results


def shipped_classifier(name: str, config: str) -> nn.Module:
    """A shipped classifier of Imagenette's ten classes."""
    return trained(read_config(ROOT / 'configs' / 'imagenette' / config), shipped_file(name))


def predicted_minutes(
    experiment: SizeExperiment, forms: Sequence[str] = tuple(POSITIONS), repeats: int = 3
) -> dict[str, float]:
    """Core minutes of the final training of each form, from its fastest optimiser step on random
    images.

    Features, tests and the segmentor are not included.
    """
    plan = experiment.plan
    found: dict[str, float] = {}
    for form in forms:
        cfg = experiment.config(Run(FINAL, form, 0, plan['rates'][0]))
        init_default_scope('mmpretrain')
        preprocessor = dict(cfg.data_preprocessor, type='ClsDataPreprocessor')
        model = MODELS.build(dict(cfg.model, data_preprocessor=preprocessor)).train()
        wrapper = build_optim_wrapper(model, cfg.optim_wrapper)
        seconds = []
        for _ in range(repeats):
            begun = time.process_time()
            model.train_step(random_batch(plan['batch_size']), wrapper)
            seconds.append(time.process_time() - begun)
        found[form] = min(seconds) * plan['steps'] * plan['epochs'] / 60
        print(f'{form}: {min(seconds):.2f} s a step, {found[form]:.0f} core minutes a training')
        sys.stdout.flush()
    return found


def random_batch(count: int) -> dict[str, Any]:
    """Noise in the form of a batch of training crops."""
    samples = []
    for index in range(count):
        sample = DataSample().set_gt_label(index % 10)
        sample.set_gt_score(nn.functional.one_hot(torch.tensor(index % 10), 10).float())
        sample.set_field(torch.rand(5), 'draw')
        sample.set_field(torch.rand(112, 7, 7), 'target_map')
        sample.set_field(torch.rand(1280), 'target_pooled')
        samples.append(sample)
    images = [torch.randint(256, (3, 128, 128), dtype=torch.uint8) for _ in range(count)]
    return dict(inputs=images, data_samples=samples)
