"""Run two shipped models, train a detector and a segmentor on digit scenes of 128 x 128 px, run both at four sizes.

Ends with a table (box AP, AP50, mIoU for each size) and a picture. After an interruption, run it again: training
resumes and finished work is kept. At most four minutes on two idle CPU cores.
"""

import contextlib
import copy
import json
import os
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import picture
import torch
from digit_scenes import open_photo, set_name, write_scenes
from mmengine.config import Config
from PIL import Image
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress

from cpvt_backbones.analysis.tables import write_table
from cpvt_backbones.checkpoints import newest_checkpoint
from cpvt_backbones.engine import command_line as cli
from cpvt_backbones.engine.launch import read_config, test
from cpvt_backbones.inference.inferencer import Inferencer
from cpvt_backbones.weights import find_shipped

ROOT = Path(__file__).resolve().parents[1]
CONFIGS = {
    'detector': 'configs/demo/retinanet_{}_digits.py',
    'segmentor': 'configs/demo/semantic-fpn_{}_digits.py',
}
BACKBONES = {False: 'multiscale-cpvt-d4', True: 'multiscale-cpvt'}  # by --long
SHIPPED = ('retinanet_cpvt_tiny_gap-bccd', 'semantic_fpn_cpvt_tiny_gap-camvid')
SHIPPED_SIDES = (288, 384, 480)  # px, the longer side
LEAST_AP50 = 0.85
LEAST_MIOU = 0.6
MOST_AP50_LOST = 0.05
TRAIN_SIDE, TRAIN_SCENES = 128, 4000
# The trainings run side by side. More threads than this gain nothing at 128 px.
MOST_THREADS = 4

console = Console(file=sys.stdout)


class TestSize(NamedTuple):
    """Held-out scenes of one size in px; the picture shows the one whose number of digits is nearest to ``shown``."""

    width: int
    height: int
    scenes: int
    shown: int

    def __str__(self) -> str:
        return f'{self.width} x {self.height}'

    def folder(self, data_root: Path) -> Path:
        return data_root / set_name(split='heldout', width=self.width, height=self.height)


# The training size first; then 1.6 times its side; not square and not divisible by 16; larger than 1000 px. Numbers of
# scenes chosen for about equal numbers of pixels.
SIZES = (
    TestSize(128, 128, scenes=300, shown=4),
    TestSize(208, 208, scenes=114, shown=8),
    TestSize(251, 150, scenes=130, shown=8),
    TestSize(1024, 640, scenes=8, shown=60),
)


def run(
    *,
    work_dir: Path,
    data_root: Path,
    overwrite: bool = False,
    long: bool = False,
    sizes: Sequence[TestSize] = SIZES,
    train_scenes: int = TRAIN_SCENES,
    iterations: int | None = None,
) -> dict[str, Any]:
    """Run the demo, as the command line does.

    Args:
        work_dir, data_root, overwrite, long: See ``--help``.
        sizes: Held-out sizes, the training size first.
        train_scenes: Number of training scenes.
        iterations: Length of each training; ``None`` for the configs' own.

    Returns:
        dict: ``sizes`` (metrics for each size) and ``missed`` (targets that were not reached, in words).
    """
    work_dir.mkdir(parents=True, exist_ok=True)
    threads, why = choose_threads()
    console.print(f'{why}: {threads} {"thread" if threads == 1 else "threads"} for each of two trainings at once')
    torch.set_num_threads(threads)
    with quiet(work_dir / 'demo.log'):
        show_shipped(work_dir / 'shipped.png')
        write_data(data_root, sizes, train_scenes)
        models = {}
        for name, config in CONFIGS.items():
            options = options_for(name, data_root, sizes[0])
            cfg = read_config(ROOT / config.format(BACKBONES[long]), cfg_options=options, work_dir=work_dir / name)
            cfg.train_cfg.max_iters = iterations or cfg.train_cfg.max_iters
            models[name] = cfg
        train_models(models, overwrite, threads)
        rows = []
        with bars() as progress:
            for size in progress.track(sizes, description='evaluating'):
                boxes, masks = (evaluate(name, cfg, data_root, size) for name, cfg in models.items())
                # mmdet reports no metric if there is no detection. JSON does not take numpy's numbers.
                box_ap, ap50 = (float(boxes.get(f'coco/bbox_{name}', 0)) for name in ('mAP', 'mAP_50'))
                miou = round(float(masks['mIoU']) / 100, 4)  # mmseg reports per cent, mmdet fractions
                row = dict(width=size.width, height=size.height, scenes=size.scenes)
                rows.append(dict(row, box_ap=box_ap, ap50=ap50, miou=miou))
        draw(models, work_dir, data_root, sizes)
    results = dict(sizes=rows, missed=missed_targets(rows))
    (work_dir / 'results.json').write_text(json.dumps(results, indent=1))
    write_table(work_dir / 'results.csv', rows)
    return results


def choose_threads() -> tuple[int, str]:
    """Threads of each training, and why: the cores that others leave, between the two trainings."""
    cores, busy = len(os.sched_getaffinity(0)), os.getloadavg()[0]
    return min(max(round(cores - busy) // 2, 1), MOST_THREADS), f'{cores} cores, load {busy:.1f}'


@contextlib.contextmanager
def quiet(log: Path) -> Iterator[None]:
    """Send what the toolboxes print to a file."""
    # It stays open: mmengine's loggers keep the stream.
    stream = log.open('a', buffering=1)
    with contextlib.redirect_stdout(stream), contextlib.redirect_stderr(stream):
        yield


def bars() -> Progress:
    """Progress bars that leave stdout and stderr as :func:`quiet` set them."""
    columns = (*Progress.get_default_columns(), MofNCompleteColumn())
    options = dict(speed_estimate_period=120, redirect_stdout=False, redirect_stderr=False)
    return Progress(*columns, console=console, **options)


def show_shipped(file: Path) -> None:
    """Run two shipped models on a photograph each at three sizes; draw the results, unless the file is there."""
    if file.is_file():
        return
    console.print('Shipped models, each on one photograph at three sizes:')
    configs = (read_config(find_shipped(name).config_file) for name in SHIPPED)
    models = zip(configs, SHIPPED, strict=True)
    cells, street = (Inferencer(cfg=cfg, checkpoint=name, scale='native') for cfg, name in models)
    # Blood cells are darker than what is behind them: the negative of 24 coins, in a smear's colours.
    ink = np.clip(np.asarray(open_photo('skimage.data', 'coins.png'), np.float32)[..., :1] / 127 - 0.7, 0, 1)
    smear = Image.fromarray(np.uint8((235, 225, 215) + ink * np.float32((-30, -95, -65))))
    temple = open_photo('sklearn.datasets.images', 'china.jpg')
    rows: list[list[np.ndarray]] = [[], []]
    for side in SHIPPED_SIDES:
        small = [image.resize((side, round(side * image.height / image.width))) for image in (smear, temple)]
        found, boxes = cells(np.asarray(small[0])[..., ::-1], score_thr=0.4, vis=True)
        areas, masks = street(np.asarray(small[1])[..., ::-1], vis=True)
        share = np.bincount(areas['seg_map'].ravel(), minlength=11) / areas['seg_map'].size
        classes = street.predictor.classes
        largest = ', '.join(f'{classes[i].lower()} {share[i]:.0%}' for i in np.argsort(-share)[:3])
        console.print(f'  {side:4} px: {len(found["boxes"])} boxes on 24 coins; a temple: {largest}')
        for row, drawn in zip(rows, (boxes, masks), strict=True):
            row.append(drawn)
    picture.tile(rows).save(file)
    console.print(f'  picture: {file}')


def write_data(data_root: Path, sizes: Sequence[TestSize], train_scenes: int) -> None:
    """Write the training set and the held-out sets that do not exist yet."""
    sets = [dict(split='train', width=TRAIN_SIDE, height=TRAIN_SIDE, count=train_scenes)]
    sets += [dict(split='heldout', width=size.width, height=size.height, count=size.scenes) for size in sizes]
    with bars() as progress:
        task = progress.add_task('writing scenes', total=sum(options['count'] for options in sets))

        def advance(indices: range) -> Iterator[int]:
            for index in indices:
                yield index
                progress.advance(task)

        for options in sets:
            write_scenes(root=data_root, progress=advance, **options)
        progress.update(task, completed=progress.tasks[task].total)


def options_for(name: str, data_root: Path, size: TestSize) -> dict[str, Any]:
    """Config options that point a demo config at ``data_root``, tested on scenes of ``size``."""
    train_set = data_root / set_name(split='train', width=TRAIN_SIDE, height=TRAIN_SIDE)
    options = {'train_dataloader.dataset.data_root': str(train_set)}
    options['test_dataloader.dataset.data_root'] = str(size.folder(data_root))
    # The trainings have all cores already, and a scene is read in a millisecond.
    for loader in ('train_dataloader', 'test_dataloader'):
        options |= {f'{loader}.num_workers': 0, f'{loader}.persistent_workers': False}
    if name == 'detector':
        options['test_evaluator.ann_file'] = str(size.folder(data_root) / 'instances.json')
    return options


def train_models(models: dict[str, Config], overwrite: bool, threads: int) -> None:
    """Train the models that are not trained yet, side by side; exits if a training fails."""
    with bars() as progress, contextlib.ExitStack() as stack:
        tasks = {}
        running = {}
        for name, cfg in models.items():
            prepare(cfg, overwrite)
            tasks[name] = progress.add_task(f'training the {name}', total=cfg.train_cfg.max_iters)
            running[name] = stack.enter_context(training(cfg, threads))
        while running:
            time.sleep(0.2)
            for name, process in list(running.items()):
                if process.poll() is not None:
                    del running[name]
                    if not checkpoint_of(models[name]).is_file():
                        sys.exit(f'error: training the {name} failed; see the end of {log_of(models[name])}')
                done = iteration(models[name])
                # The bar is not shown in a log file.
                if not console.is_terminal and done % 100 == 0 and done != progress.tasks[tasks[name]].completed:
                    console.print(f'{name}: iteration {done}')
                progress.update(tasks[name], completed=done)


def prepare(cfg: Config, overwrite: bool) -> None:
    """Make a training's folder with its config, empty unless it holds a training of that config."""
    # No validation while training: the demo evaluates afterwards.
    cfg.val_cfg = cfg.val_dataloader = cfg.val_evaluator = None
    file, text = Path(cfg.work_dir, 'config.py'), cfg.pretty_text
    if overwrite or not file.is_file() or file.read_text() != text:
        shutil.rmtree(cfg.work_dir, ignore_errors=True)
        file.parent.mkdir(parents=True)
        file.write_text(text)


@contextlib.contextmanager
def training(cfg: Config, threads: int) -> Iterator['subprocess.Popen[bytes]']:
    """A process that trains a model unless it is trained; it saves and ends when the context does."""
    # Two processes of one thread use two cores better than one process of two threads.
    env = {**os.environ, 'OMP_NUM_THREADS': str(threads), 'OMP_WAIT_POLICY': 'PASSIVE'}
    tool = [sys.executable, ROOT / 'tools/train.py', Path(cfg.work_dir, 'config.py')]
    command = ['true'] if checkpoint_of(cfg).is_file() else [*map(str, tool), '--resume', '--work-dir', cfg.work_dir]
    with log_of(cfg).open('a') as log:
        # A new session: Ctrl-C reaches the demo alone.
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True, cwd=ROOT, env=env)
        try:
            yield process
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()


def checkpoint_of(cfg: Config) -> Path:
    """The checkpoint of the last iteration."""
    return Path(cfg.work_dir, f'iter_{cfg.train_cfg.max_iters}.pth')


def log_of(cfg: Config) -> Path:
    return Path(cfg.work_dir, 'train.log')


def iteration(cfg: Config) -> int:
    """The last iteration in a training's log."""
    if checkpoint_of(cfg).is_file():
        return cfg.train_cfg.max_iters
    found = re.findall(r'Iter\(train\) +\[ *(\d+)/', log_of(cfg).read_text(errors='replace'))
    return int(found[-1]) if found else 0


def evaluate(name: str, cfg: Config, data_root: Path, size: TestSize) -> dict[str, float]:
    """Metrics of a trained model on the held-out scenes of one size."""
    # mmengine keeps visualizers by name, and with them their folders.
    options = {'log_level': 'WARNING', 'visualizer.name': f'{name}_{time.time_ns()}'}
    own = copy.deepcopy(cfg)
    own.merge_from_dict({**options_for(name, data_root, size), **options})
    own.work_dir = str(Path(cfg.work_dir, f'test_{size.width}x{size.height}'))
    return test(own, checkpoint=checkpoint_of(cfg))


def missed_targets(rows: list[dict[str, float]]) -> list[str]:
    """Targets that the metrics miss, in words. The first row is the training size, the second 1.6 times as large."""
    first, second = rows[:2]
    missed = []
    for name, value, least in (('AP50', first['ap50'], LEAST_AP50), ('mIoU', first['miou'], LEAST_MIOU)):
        if value < least:
            missed.append(f'{name} at the training size is {value:.3f}, below {least}')
    # Metrics have three decimals, and so has their difference.
    lost = round(first['ap50'] - second['ap50'], 3)
    if lost > MOST_AP50_LOST:
        missed.append(f'AP50 at 1.6 times the training size is lower by {lost:.3f}, more than {MOST_AP50_LOST}')
    return missed


def draw(models: dict[str, Config], work_dir: Path, data_root: Path, sizes: Sequence[TestSize]) -> None:
    """Run both models on one scene of each size and draw their predictions."""
    detector, segmentor = (
        Inferencer(cfg=cfg, checkpoint=checkpoint_of(cfg), scale='native') for cfg in models.values()
    )
    panels = []
    for size in sizes:
        folder = size.folder(data_root)
        name = picture.choose_scene(folder, size.shown)
        image, labels = folder / f'images/{name}.jpg', folder / f'labels/{name}.png'
        title = f'{size} px, {"the training size" if size is sizes[0] else "never seen in training"}'
        seg_map = segmentor(image)[0]['seg_map']
        panels.append(picture.Panel(image, labels, detections=detector(image)[0], seg_map=seg_map, title=title))
    picture.compose(panels, models['segmentor'].metainfo.palette).save(work_dir / 'demo.png')


def next_commands(work_dir: Path, data_root: Path) -> list[str]:
    """Three commands that use the trained models, ready to run in the current folder."""
    files = {name: [str(work_dir / name / 'config.py'), str(newest_checkpoint(work_dir / name))] for name in CONFIGS}
    scenes = str(SIZES[-1].folder(data_root) / 'images')
    python = os.path.relpath(sys.executable) if Path(sys.executable).is_relative_to(Path.cwd()) else sys.executable
    tools = os.path.relpath(ROOT / 'tools')
    commands = (
        ('infer.py', *files['detector'], scenes, '--out', str(work_dir / 'boxes')),
        ('infer.py', *files['segmentor'], scenes, '--out', str(work_dir / 'masks')),
        ('export.py', *files['detector'], '--format', 'onnx', '--out', str(work_dir / 'detector.onnx')),
    )
    return [shlex.join([python, os.path.join(tools, tool), *words]) for tool, *words in commands]


def report(results: dict[str, Any], work_dir: Path, data_root: Path, minutes: float) -> None:
    """Print the table, the paths of the results and what to try next."""
    console.print(f'Trained at {TRAIN_SIDE} x {TRAIN_SIDE} px, tested on held-out digits and photographs:')
    cli.print_table(results['sizes'])
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    cpu = sum(each.ru_utime + each.ru_stime for each in usage) / 60
    memory = max(each.ru_maxrss for each in usage) // 1024
    lines = (
        f'this run: {minutes:.1f} min, {cpu:.1f} CPU minutes, at most {memory} MiB a process',
        f'picture: {work_dir}/demo.png   figures: {work_dir}/results.csv, results.json',
        'Try next:',
        *(f'  {command}' for command in next_commands(work_dir, data_root)),
    )
    console.print('\n'.join(lines), soft_wrap=True, highlight=False, markup=False)


def main() -> None:
    parser = cli.make_parser(__doc__, renamed={'--fresh': '--overwrite'})
    parser.add_argument('--work-dir', type=Path, help='default: work_dirs/demo, with --long work_dirs/demo-long')
    parser.add_argument('--data-root', type=Path, default=Path('data/digit_scenes'), help='default: %(default)s')
    parser.add_argument('--overwrite', action='store_true', help='train again models that are trained already')
    parser.add_argument('--long', action='store_true', help='larger models, trained about twice as long')
    args = parser.parse_args()
    started = time.monotonic()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    work_dir = args.work_dir or Path('work_dirs/demo-long' if args.long else 'work_dirs/demo')
    folders = dict(work_dir=work_dir.resolve(), data_root=args.data_root.resolve())
    results = run(**folders, overwrite=args.overwrite, long=args.long)
    report(results, work_dir, args.data_root, (time.monotonic() - started) / 60)
    for target in results['missed']:
        console.print(f'[bold red]missed:[/] {target}')
    sys.exit(1 if results['missed'] else 0)


if __name__ == '__main__':
    cli.run(main, interrupted='interrupted; run it again to resume')
