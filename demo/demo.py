"""Train a detector and a segmentor on digit scenes of 128 x 128 px, run both at four sizes.

Ends with a table (box AP, AP50, mIoU for each size) and a picture. After an interruption, run it
again: training resumes and finished work is kept. About four minutes on two idle CPU cores.
"""

import contextlib
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
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import picture
import torch
from digit_scenes import set_name, write_scenes
from mmengine.config import Config
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress

from cpvt import command_line as cli
from cpvt_backbones.checkpoints import newest_checkpoint
from cpvt_backbones.engine.launch import test
from cpvt_backbones.inference.inferencer import Inferencer
from cpvt_backbones.toolboxes import read_config

ROOT = Path(__file__).resolve().parents[1]
CONFIGS = {
    'detector': 'configs/demo/retinanet_{}_digits.py',
    'segmentor': 'configs/demo/semantic-fpn_{}_digits.py',
}
BACKBONES = {False: 'multiscale-cpvt-d4', True: 'multiscale-cpvt'}  # by --long
# A short training ends elsewhere on another processor: with a longer one, mIoU was 0.628 on an AMD
# EPYC and 0.586 on an Intel Xeon with AMX. It is 0.547 on the EPYC.
LEAST_AP50 = 0.85
LEAST_MIOU = 0.45
MOST_AP50_LOST = 0.05
TRAIN_SIDE, TRAIN_SCENES = 128, 4000
# The trainings run side by side. More threads than this gain nothing at 128 px.
MOST_THREADS = 4

console = Console(file=sys.stdout)


class TestSize(NamedTuple):
    """Held-out scenes of one size in px.

    The picture shows the one whose number of digits is nearest to ``shown``.
    """

    width: int
    height: int
    scenes: int
    shown: int

    def __str__(self) -> str:
        return f'{self.width} x {self.height}'

    def folder(self, data_root: Path) -> Path:
        return data_root / set_name(split='heldout', width=self.width, height=self.height)


# The training size first; then 1.6 times its side; not square and not divisible by 16; larger than
# 1000 px. Numbers of scenes chosen for about equal numbers of pixels.
SIZES = (
    TestSize(128, 128, scenes=300, shown=4),
    TestSize(208, 208, scenes=80, shown=8),
    TestSize(251, 150, scenes=60, shown=8),
    TestSize(1024, 640, scenes=4, shown=60),
)
LOG = 'demo.log'


def run(
    *,
    work_dir: Path,
    data_root: Path,
    overwrite: bool = False,
    long: bool = False,
    seed: int = 0,
    sizes: Sequence[TestSize] = SIZES,
    train_scenes: int = TRAIN_SCENES,
    iterations: int | None = None,
) -> dict[str, Any]:
    """Run the demo; ``sizes`` has the training size first, ``iterations=None`` means those of the
    configs.

    Returns ``sizes`` (metrics for each size) and ``missed`` (targets that were not reached, in
    words), which is also the content of ``results.json``.

    Raises:
        FileExistsError: ``work_dir`` has other files than those of a demo; some would be deleted.
    """
    work_dir.mkdir(parents=True, exist_ok=True)
    if any(work_dir.iterdir()) and not (work_dir / LOG).is_file():
        raise FileExistsError(
            f'--work-dir: {str(work_dir)!r} has files and no {LOG} of an earlier demo; name a new'
            ' folder'
        )
    threads, why = choose_threads()
    console.print(
        f'{why}: {threads} {"thread" if threads == 1 else "threads"} for each of two trainings at'
        ' once'
    )
    torch.set_num_threads(threads)
    with quiet(work_dir / LOG):
        write_data(data_root, sizes, train_scenes)
        models = {}
        for name, config in CONFIGS.items():
            options = options_for(name, data_root, sizes[0])
            cfg = read_config(
                ROOT / config.format(BACKBONES[long]), cfg_options=options, work_dir=work_dir / name
            )
            cfg.train_cfg.max_iters = iterations or cfg.train_cfg.max_iters
            cfg.randomness, cfg.experiment_name = dict(seed=seed), name
            models[name] = cfg
        train_models(models, overwrite, threads)
        # One model at a time now.
        torch.set_num_threads(2 * threads if len(os.sched_getaffinity(0)) > 1 else 1)
        rows = []
        with bars() as progress:
            for size in progress.track(sizes, description='evaluating'):
                # Also where the terminal shows no bars.
                console.print(f'evaluating both models at {size} px, {size.scenes} scenes')
                found = evaluate('detector', models, data_root, size) | evaluate(
                    'segmentor', models, data_root, size
                )
                # mmdet reports no metric if there is no detection, mmseg per cent. JSON does not
                # take numpy's numbers.
                box_ap, ap50 = (
                    float(found.get(f'coco/bbox_{name}', 0)) for name in ('mAP', 'mAP_50')
                )
                figures = dict(box_ap=box_ap, ap50=ap50, miou=round(float(found['mIoU']) / 100, 4))
                rows.append(
                    dict(width=size.width, height=size.height, scenes=size.scenes, **figures)
                )
        draw(models, work_dir, data_root, sizes)
    results = dict(sizes=rows, missed=missed_targets(rows))
    (work_dir / 'results.json').write_text(json.dumps(results, indent=1))
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


def write_data(data_root: Path, sizes: Sequence[TestSize], train_scenes: int) -> None:
    """Write the training set and the held-out sets that do not exist yet."""
    sets = [
        dict(split='heldout', width=size.width, height=size.height, count=size.scenes)
        for size in sizes
    ]
    sets.append(dict(split='train', width=TRAIN_SIDE, height=TRAIN_SIDE, count=train_scenes))
    with bars() as progress:
        # One bar, which starts again with each set; the last set is by far the largest.
        task = progress.add_task('writing scenes', total=len(sets))
        for options in sets:
            write_scenes(root=data_root, progress=partial(progress.track, task_id=task), **options)


def options_for(name: str, data_root: Path, size: TestSize) -> dict[str, Any]:
    """Config options that point a demo config at ``data_root``, tested on scenes of ``size``."""
    train_set = data_root / set_name(split='train', width=TRAIN_SIDE, height=TRAIN_SIDE)
    folders = dict(train=train_set, test=size.folder(data_root))
    options = {
        f'{split}_dataloader.dataset.data_root': str(folder) for split, folder in folders.items()
    }
    if name == 'detector':
        options['test_evaluator.ann_file'] = str(size.folder(data_root) / 'instances.json')
    return options


def train_models(models: dict[str, Config], overwrite: bool, threads: int) -> None:
    """Train the models that are not trained yet, side by side; exits if a training fails."""
    with bars() as progress, contextlib.ExitStack() as stack:
        tasks = {name: progress.add_task(f'training the {name}', total=1) for name in models}
        running = {
            name: stack.enter_context(training(cfg, overwrite, threads))
            for name, cfg in models.items()
        }
        while running:
            time.sleep(0.5)
            ended = [name for name, process in running.items() if process.poll() is not None]
            for name in list(running):
                done, total = iteration(models[name]), models[name].train_cfg.max_iters
                # The bar is not shown in a log file.
                if (
                    not console.is_terminal
                    and done % 100 == 0
                    and done != progress.tasks[tasks[name]].completed
                ):
                    console.print(f'{name}: iteration {done} of {total}')
                progress.update(tasks[name], completed=done, total=total)
            for name in ended:
                del running[name]
                if not checkpoint_of(models[name]).is_file():
                    sys.exit(
                        f'error: training the {name} failed; see the end of {log_of(models[name])}'
                    )


@contextlib.contextmanager
def training(cfg: Config, overwrite: bool, threads: int) -> Iterator['subprocess.Popen[bytes]']:
    """A process that trains a model unless it is trained.

    It saves and ends when the context does.
    """
    # No validation while training: the demo evaluates afterwards.
    cfg.val_cfg = cfg.val_dataloader = cfg.val_evaluator = None
    file, text = Path(cfg.work_dir, 'config.py'), cfg.pretty_text
    if overwrite or not file.is_file() or file.read_text() != text:
        shutil.rmtree(cfg.work_dir, ignore_errors=True)
        file.parent.mkdir(parents=True)
        file.write_text(text)
    # Two processes of one thread use two cores better than one process of two threads.
    env = {**os.environ, 'OMP_NUM_THREADS': str(threads), 'OMP_WAIT_POLICY': 'PASSIVE'}
    tool = [
        sys.executable,
        str(ROOT / 'tools/train.py'),
        str(file),
        '--resume',
        '--work-dir',
        cfg.work_dir,
    ]
    with log_of(cfg).open('a') as log:
        # A new session: Ctrl-C reaches the demo alone.
        options = dict(stdout=log, stderr=log, start_new_session=True, cwd=ROOT, env=env)
        process = subprocess.Popen(['true'] if checkpoint_of(cfg).is_file() else tool, **options)
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


def evaluate(
    name: str, models: dict[str, Config], data_root: Path, size: TestSize
) -> dict[str, float]:
    """Metrics of a trained model on the held-out scenes of one size."""
    # mmengine writes the config several times, and formatting it takes as long as many scenes.
    cfg = Config(models[name].to_dict(), format_python_code=False)
    # mmengine keeps visualizers by name, and with them their folders; and registry scopes by the
    # experiment's name and second of start.
    unique = f'{name}_{time.time_ns()}'
    options = {'log_level': 'WARNING', 'visualizer.name': unique, 'experiment_name': unique}
    cfg.merge_from_dict({**options_for(name, data_root, size), **options})
    cfg.work_dir = str(Path(cfg.work_dir, f'test_{size.width}x{size.height}'))
    return test(cfg, checkpoint=checkpoint_of(models[name]))


def missed_targets(rows: list[dict[str, float]]) -> list[str]:
    """Targets that the metrics miss, in words.

    The first row is the training size, the second 1.6 times as large.
    """
    first, second = rows[:2]
    figures = (('AP50', first['ap50'], LEAST_AP50), ('mIoU', first['miou'], LEAST_MIOU))
    missed = [
        f'{name} at the training size is {value:.3f}, below {least}'
        for name, value, least in figures
        if value < least
    ]
    # Metrics have three decimals, and so has their difference.
    lost = round(first['ap50'] - second['ap50'], 3)
    if lost > MOST_AP50_LOST:
        missed.append(
            f'AP50 at 1.6 times the training size is lower by {lost:.3f}, more than'
            f' {MOST_AP50_LOST}'
        )
    return missed


def draw(
    models: dict[str, Config], work_dir: Path, data_root: Path, sizes: Sequence[TestSize]
) -> None:
    """Run both models on one scene of each size and draw their predictions."""
    detector, segmentor = (
        Inferencer(cfg=cfg, checkpoint=checkpoint_of(cfg), scale='native')
        for cfg in models.values()
    )
    panels = []
    for size in sizes:
        folder = size.folder(data_root)
        name = picture.choose_scene(folder, size.shown)
        image, labels = folder / f'images/{name}.jpg', folder / f'labels/{name}.png'
        title = (
            f'{size} px, {"the training size" if size is sizes[0] else "never seen in training"}'
        )
        seg_map = segmentor(image)[0]['seg_map']
        panels.append(
            picture.Panel(
                image, labels, detections=detector(image)[0], seg_map=seg_map, title=title
            )
        )
    picture.compose(panels, models['segmentor'].metainfo.palette).save(work_dir / 'demo.png')


def next_commands(work_dir: Path, data_root: Path) -> list[str]:
    """Three commands that use the trained models, ready to run in the current folder."""
    files = {
        name: [str(work_dir / name / 'config.py'), str(newest_checkpoint(work_dir / name))]
        for name in CONFIGS
    }
    scenes = str(SIZES[-1].folder(data_root) / 'images')
    python = (
        os.path.relpath(sys.executable)
        if Path(sys.executable).is_relative_to(Path.cwd())
        else sys.executable
    )
    tools = os.path.relpath(ROOT / 'tools')
    commands = (
        ('infer.py', *files['detector'], scenes, '--out-dir', str(work_dir / 'boxes')),
        ('infer.py', *files['segmentor'], scenes, '--out-dir', str(work_dir / 'masks')),
        (
            'export.py',
            *files['detector'],
            '--format',
            'onnx',
            '--out',
            str(work_dir / 'detector.onnx'),
        ),
    )
    return [shlex.join([python, os.path.join(tools, tool), *words]) for tool, *words in commands]


def report(results: dict[str, Any], work_dir: Path, data_root: Path, minutes: float) -> None:
    """Print the table, the paths of the results and what to try next."""
    console.print(
        f'Trained at {TRAIN_SIDE} x {TRAIN_SIDE} px, tested on held-out digits and photographs:'
    )
    cli.print_table(results['sizes'])
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    cpu = sum(each.ru_utime + each.ru_stime for each in usage) / 60
    memory = max(each.ru_maxrss for each in usage) // 1024
    text = f"""this run: {minutes:.1f} min, {cpu:.1f} CPU minutes, at most {memory} MiB a process
picture: {work_dir}/demo.png   figures: {work_dir}/results.json
Try next:"""
    lines = '\n  '.join((text, *next_commands(work_dir, data_root)))
    console.print(lines, soft_wrap=True, highlight=False, markup=False)


def main() -> None:
    parser = cli.make_parser(__doc__)
    parser.add_argument(
        '--work-dir', type=Path, help='default: work_dirs/demo, with --long work_dirs/demo-long'
    )
    parser.add_argument(
        '--data-root', type=Path, default=Path('data/digit_scenes'), help='default: %(default)s'
    )
    parser.add_argument(
        '--overwrite', action='store_true', help='train again models that are trained already'
    )
    parser.add_argument(
        '--long', action='store_true', help='larger models, trained about twice as long'
    )
    parser.add_argument(
        '--seed', type=int, default=0, help='of both trainings; default: %(default)s'
    )
    args = parser.parse_args()
    started = time.monotonic()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    work_dir = args.work_dir or Path('work_dirs/demo-long' if args.long else 'work_dirs/demo')
    folders = dict(work_dir=work_dir.resolve(), data_root=args.data_root.resolve())
    results = run(**folders, overwrite=args.overwrite, long=args.long, seed=args.seed)
    report(results, work_dir, args.data_root, (time.monotonic() - started) / 60)
    for target in results['missed']:
        console.print(f'[bold red]missed:[/] {target}')
    sys.exit(1 if results['missed'] else 0)


if __name__ == '__main__':
    cli.run(main, interrupted='interrupted; run it again to resume')
