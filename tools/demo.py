"""The whole path on embedded data: train a detector and a segmentor at 128 x 128 px, run both at four sizes.

Ends with a table (box AP, AP50, mIoU per size) and a picture. Interrupt it and run it again: it goes on where it was,
and what is finished is not done twice. About twelve minutes on two CPU cores, nine of them training.
"""

import argparse
import contextlib
import csv
import hashlib
import io
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import _demo_picture
from mmengine.config import Config
from mmengine.runner.checkpoint import find_latest_checkpoint
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from cpvt_backbones.datasets.digit_scenes import set_name, write_scenes
from cpvt_backbones.engine.launch import read_config, test
from cpvt_backbones.inference.inferencer import Inferencer

ROOT = Path(__file__).resolve().parents[1]
LEAST_AP50 = 0.7
LEAST_MIOU = 0.6
MOST_AP50_LOST = 0.05

console = Console()


@dataclass(frozen=True)
class TestSize:
    """Held-out scenes of one size.

    Args:
        width, height: px.
        scenes: How many.
        shown: Digits that the scene in the picture should have; the one that comes nearest is shown.
    """

    width: int
    height: int
    scenes: int
    shown: int

    def __str__(self) -> str:
        return f'{self.width} x {self.height}'


# The training size first. The others hold about as many pixels together: 1.6 times the side; not divisible by 16 and
# not square; larger than 1000 px.
SIZES = (
    TestSize(128, 128, scenes=300, shown=4),
    TestSize(208, 208, scenes=114, shown=8),
    TestSize(251, 150, scenes=130, shown=8),
    TestSize(1024, 640, scenes=8, shown=60),
)
TRAIN_SIDE, TRAIN_SCENES = 128, 4000


@dataclass(frozen=True)
class Model:
    """One of the two models.

    Args:
        name: What it is called here.
        config: Its config, from the repository's root.
    """

    name: str
    config: str


DETECTOR = Model('detector', 'configs/demo/retinanet_multiscale-cpvt_digits.py')
SEGMENTOR = Model('segmentor', 'configs/demo/semantic-fpn_multiscale-cpvt_digits.py')


def run(
    *,
    work_dir: Path,
    data_root: Path,
    fresh: bool = False,
    sizes: Sequence[TestSize] = SIZES,
    train_scenes: int = TRAIN_SCENES,
    iterations: int | None = None,
) -> dict[str, Any]:
    """Run the demo.

    Args:
        work_dir: Where everything but the scenes goes.
        data_root: Where the scenes go.
        fresh: Train again what is trained already.
        sizes: Held-out sizes, the training size first.
        train_scenes: Number of training scenes.
        iterations: Length of each training; ``None`` for the configs' own.

    Returns:
        dict: ``sizes`` (a row of figures for each size), ``training`` (seconds and peak memory of each) and
        ``missed`` (the targets that were not reached, in words).
    """
    work_dir.mkdir(parents=True, exist_ok=True)
    write_data(data_root, sizes, train_scenes)
    trained = {
        model.name: train_model(model, work_dir / model.name, data_root, fresh, iterations)
        for model in (DETECTOR, SEGMENTOR)
    }
    rows = []
    for size in sizes:
        console.print(f'evaluating both at {size}')
        found = evaluate(DETECTOR, trained, work_dir, data_root, size)
        masks = evaluate(SEGMENTOR, trained, work_dir, data_root, size)
        rows.append(
            dict(
                width=size.width,
                height=size.height,
                scenes=size.scenes,
                # Plain numbers: numpy's are no JSON.
                box_ap=float(found['coco/bbox_mAP']),
                ap50=float(found['coco/bbox_mAP_50']),
                # mmseg counts in per cent, mmdet does not.
                miou=round(float(masks['mIoU']) / 100, 4),
            )
        )
    results = dict(
        sizes=rows,
        training={name: dict(seconds=t['seconds'], peak_mib=t['peak_mib']) for name, t in trained.items()},
        missed=missed_targets(rows),
    )
    draw(trained, work_dir, data_root, sizes)
    (work_dir / 'results.json').write_text(json.dumps(results, indent=1))
    with (work_dir / 'results.csv').open('w', newline='') as file:
        writer = csv.DictWriter(file, fieldnames=rows[0])
        writer.writeheader()
        writer.writerows(rows)
    return results


def write_data(data_root: Path, sizes: Sequence[TestSize], train_scenes: int) -> None:
    """Write the training set and the held-out sets, those that are not there."""
    with Progress(TextColumn('{task.description}'), BarColumn(), MofNCompleteColumn(), console=console) as progress:
        task = progress.add_task('writing scenes', total=train_scenes + sum(size.scenes for size in sizes))
        before = 0
        sets = [('train', TRAIN_SIDE, TRAIN_SIDE, train_scenes)]
        sets += [('heldout', size.width, size.height, size.scenes) for size in sizes]
        for split, width, height, count in sets:
            write_scenes(
                root=data_root,
                split=split,
                width=width,
                height=height,
                count=count,
                progress=lambda done, _, before=before: progress.update(task, completed=before + done),
            )
            before += count
            progress.update(task, completed=before)


def options_for(model: Model, data_root: Path, size: TestSize) -> dict[str, Any]:
    """Config options that point a demo config at ``data_root``, tested on scenes of ``size``."""
    train_set = data_root / set_name(split='train', width=TRAIN_SIDE, height=TRAIN_SIDE)
    test_set = data_root / set_name(split='heldout', width=size.width, height=size.height)
    options = {'train_dataloader.dataset.data_root': str(train_set)}
    for part in ('val', 'test'):
        options[f'{part}_dataloader.dataset.data_root'] = str(test_set)
        if model is DETECTOR:
            options[f'{part}_evaluator.ann_file'] = str(test_set / 'instances.json')
    return options


def train_model(model: Model, work_dir: Path, data_root: Path, fresh: bool, iterations: int | None) -> dict[str, Any]:
    """Train, or go on training, or find it trained.

    Returns:
        dict: ``checkpoint``, ``seconds`` (over all runs that it took) and ``peak_mib`` (memory of the largest one).
    """
    options: dict[str, Any] = options_for(model, data_root, SIZES[0])
    total = iterations or read_config(ROOT / model.config).train_cfg.max_iters
    options['train_cfg.max_iters'] = total
    cfg = read_config(ROOT / model.config, cfg_options=options, work_dir=work_dir)
    # The demo evaluates by itself, afterwards.
    cfg.val_cfg = cfg.val_dataloader = cfg.val_evaluator = None
    digest = hashlib.sha256(cfg.pretty_text.encode()).hexdigest()
    state_file = work_dir / 'training.json'
    state = json.loads(state_file.read_text()) if state_file.is_file() else {}
    if fresh or state.get('config') != digest:
        shutil.rmtree(work_dir, ignore_errors=True)
        state = dict(config=digest, seconds=0.0, peak_mib=0)
    work_dir.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    if not is_trained(work_dir, total):
        try:
            peak = run_training(model, cfg, work_dir, total)
            state['peak_mib'] = max(state['peak_mib'], peak)
        finally:
            state['seconds'] = round(state['seconds'] + time.monotonic() - started, 1)
            state_file.write_text(json.dumps(state))
    console.print(f'{model.name}: {total} iterations in {state["seconds"] / 60:.1f} min, {work_dir}')
    return dict(state, cfg=cfg, checkpoint=find_latest_checkpoint(str(work_dir)))


def is_trained(work_dir: Path, iterations: int) -> bool:
    # The file that names the newest checkpoint is written after the checkpoint itself.
    if not (work_dir / 'last_checkpoint').is_file():
        return False
    return Path(find_latest_checkpoint(str(work_dir))).name == f'iter_{iterations}.pth'


def run_training(model: Model, cfg: Config, work_dir: Path, total: int) -> int:
    """Run tools/train.py with a progress bar.

    Returns:
        int: Its peak memory in MiB.

    Raises:
        SystemExit: It failed.
    """
    # A process of its own: its memory is its own, and mmdet and mmseg keep out of each other's way.
    config_file = work_dir / 'config.py'
    cfg.dump(config_file)
    command = [sys.executable, ROOT / 'tools' / 'train.py', config_file, '--work-dir', work_dir, '--resume']
    columns = (
        TextColumn('training the {task.description}'),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn('loss {task.fields[loss]}'),
        TimeElapsedColumn(),
        TextColumn('left:'),
        TimeRemainingColumn(),
    )
    log = work_dir / 'train.log'
    with log.open('a') as log_file, Progress(*columns, console=console) as progress:
        task = progress.add_task(model.name, total=total, loss='-')
        process = subprocess.Popen(
            list(map(str, command)), cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for line in process.stdout:
            log_file.write(line)
            found = re.search(r'Iter\(train\) \[ *(\d+)/\d+\].* loss: ([\d.]+)', line)
            if found:
                progress.update(task, completed=int(found[1]), loss=found[2])
                # A log file shows no bar.
                if not console.is_terminal and int(found[1]) % 100 == 0:
                    console.print(f'{model.name}: iteration {found[1]} of {total}, loss {found[2]}')
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f'error: training the {model.name} failed; its last words are in {log}')
    return usage.ru_maxrss // 1024


def evaluate(
    model: Model, trained: dict[str, Any], work_dir: Path, data_root: Path, size: TestSize
) -> dict[str, float]:
    """Metrics of a trained model on the held-out scenes of one size."""
    folder = work_dir / model.name / f'test_{size.width}x{size.height}'
    options = {**options_for(model, data_root, size), 'log_level': 'WARNING'}
    cfg = read_config(ROOT / model.config, cfg_options=options, work_dir=folder)
    folder.mkdir(parents=True, exist_ok=True)
    # COCO's evaluation prints, and the toolboxes warn of their own defaults at every one. Not straight into the file:
    # mmengine's logger keeps the stream and writes to it later.
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), warnings.catch_warnings():
        warnings.simplefilter('ignore')
        metrics = test(cfg, checkpoint=trained[model.name]['checkpoint'])
    (folder / 'test.log').write_text(printed.getvalue())
    return metrics


def missed_targets(rows: list[dict[str, float]]) -> list[str]:
    """What the figures fall short of, in words. The first row is the training size, the second 1.6 times as large."""
    first, second = rows[:2]
    missed = []
    if first['ap50'] < LEAST_AP50:
        missed.append(f'AP50 at the training size is {first["ap50"]:.3f}, below {LEAST_AP50}')
    if first['miou'] < LEAST_MIOU:
        missed.append(f'mIoU at the training size is {first["miou"]:.3f}, below {LEAST_MIOU}')
    # Metrics have three decimals; so has their difference.
    lost = round(first['ap50'] - second['ap50'], 3)
    if lost > MOST_AP50_LOST:
        missed.append(f'AP50 at 1.6 times the training size is lower by {lost:.3f}, more than {MOST_AP50_LOST}')
    return missed


def draw(trained: dict[str, Any], work_dir: Path, data_root: Path, sizes: Sequence[TestSize]) -> None:
    """Run both models on one scene of each size and draw what they say."""
    detector, segmentor = (
        Inferencer(cfg=trained[model.name]['cfg'], checkpoint=trained[model.name]['checkpoint'])
        for model in (DETECTOR, SEGMENTOR)
    )
    palette = trained[SEGMENTOR.name]['cfg'].metainfo.palette
    panels = []
    for size in sizes:
        folder = data_root / set_name(split='heldout', width=size.width, height=size.height)
        name = _demo_picture.choose_scene(folder, size.shown)
        image = folder / 'images' / f'{name}.jpg'
        panels.append(
            _demo_picture.Panel(
                image=image,
                labels=folder / 'labels' / f'{name}.png',
                detections=detector(image)[0],
                index_map=segmentor(image)[0]['index_map'],
                title=f'{size} px' + (', the training size' if size is sizes[0] else ', never seen in training'),
            )
        )
    _demo_picture.compose(panels, palette).save(work_dir / 'demo.png')


def report(results: dict[str, Any], work_dir: Path) -> None:
    """Print the table and say where everything is."""
    table = Table(title='Trained at 128 x 128 px, tested on held-out digits and photographs')
    for name in ('size (px)', 'scenes', 'box AP', 'AP50', 'mIoU'):
        table.add_column(name, justify='right')
    for row in results['sizes']:
        figures = (f'{row[key]:.3f}' for key in ('box_ap', 'ap50', 'miou'))
        table.add_row(f'{row["width"]} x {row["height"]}', str(row['scenes']), *figures)
    console.print(table)
    minutes = ', '.join(f'{name} {t["seconds"] / 60:.1f} min' for name, t in results['training'].items())
    memory = max(t['peak_mib'] for t in results['training'].values())
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    console.print(f'training: {minutes}; peak memory {memory} MiB in training, {own} MiB in evaluation')
    console.print(f'picture: {work_dir}/demo.png   figures: {work_dir}/results.csv, results.json')
    console.print(f'models, logs: {work_dir}/{DETECTOR.name}, {work_dir}/{SEGMENTOR.name}')


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--work-dir', type=Path, default=Path('work_dirs/demo'), help='default: %(default)s')
    parser.add_argument('--data-root', type=Path, default=Path('data/digit_scenes'), help='default: %(default)s')
    parser.add_argument('--fresh', action='store_true', help='train again what is trained already')
    args = parser.parse_args()
    try:
        results = run(work_dir=args.work_dir.resolve(), data_root=args.data_root.resolve(), fresh=args.fresh)
    except KeyboardInterrupt:
        console.print('interrupted; run it again to go on from the last checkpoint')
        sys.exit(130)
    report(results, args.work_dir)
    for target in results['missed']:
        console.print(f'[bold red]missed:[/] {target}')
    sys.exit(1 if results['missed'] else 0)


if __name__ == '__main__':
    main()
