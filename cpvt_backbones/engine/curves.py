"""Plot of loss and validation score from mmengine's log."""

import json
import logging
from collections.abc import Iterable
from os import PathLike
from pathlib import Path
from typing import Any

from mmengine.dist import master_only
from mmengine.hooks import Hook
from mmengine.logging import print_log

from cpvt_backbones.checkpoints import atomic_write
from cpvt_backbones.checks import is_int

FILE = 'loss.png'
DRAWN = 20  # times in a training of 2000 or more iterations
# Last words of the drawn scores, which are the toolboxes' main metrics.
SCORES = ('bbox_mAP', 'segm_mAP', 'mAP', 'mIoU', 'top1')

Curve = dict[int, float]  # values by iteration


class LossCurveHook(Hook):
    """Draws ``loss.png`` in the work directory, during a training and at its end.

    :func:`train` registers it, after mmengine's hook that writes the log.
    """

    priority = 'LOWEST'

    def after_train_iter(self, runner: Any, *args: Any, **kwargs: Any) -> None:
        """Draw at regular intervals."""
        if self.every_n_train_iters(runner, max(100, runner.max_iters // DRAWN)):
            self._draw(runner)

    def after_val_epoch(self, runner: Any, *args: Any, **kwargs: Any) -> None:
        """Draw with the new score."""
        self._draw(runner)

    def after_train(self, runner: Any) -> None:
        """Draw the whole training, and log the path."""
        file = self._draw(runner)
        if file is None:
            runner.logger.info(f'{FILE} was not drawn: no loss is in the log')
        else:
            runner.logger.info(f'loss and score as a picture: {file}')

    @master_only
    def _draw(self, runner: Any) -> Path | None:
        try:
            curves = read_curves(runner.work_dir)
            return draw_curves(curves, Path(runner.work_dir, FILE)) if 'loss' in curves else None
        except Exception as error:  # a failed plot must not end a training
            reason = ' '.join(f'{type(error).__name__}: {error}'.split())
            print_log(f'{FILE} was not written: {reason}', 'current', logging.WARNING)
            return None


def read_curves(work_dir: str | PathLike[str]) -> dict[str, Curve]:
    """Read loss and scores from all logs of a work directory, ``*/vis_data/scalars.json``.

    An interrupted training has one log per start. A later log replaces the values of earlier ones
    from its first iteration on. Damaged lines are left out, and so are files that are not regular.

    Returns:
        Values by iteration, for ``'loss'`` and the names of the scores. A score has the last logged
        iteration before it, because some toolboxes log no iteration with it.
    """
    curves: dict[str, Curve] = {}
    for file in sorted(Path(work_dir).glob('*/vis_data/scalars.json')):
        if not file.is_file():  # reading a FIFO would block forever
            continue
        lines = file.read_text(encoding='utf-8', errors='replace').splitlines()
        _add_log(curves, filter(None, map(_parse, lines)))
    return curves


def _parse(line: str) -> dict[str, Any] | None:
    """Parse a line of a log; ``None`` for a line that a killed training left incomplete."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict) or not is_int(record.get('step')):
        return None
    return {
        key: value
        for key, value in record.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool)
    }


def _add_log(curves: dict[str, Curve], records: Iterable[dict[str, Any]]) -> None:
    last = 0
    for record in records:
        step = record['step']
        if 'loss' not in record:
            measured_at = max(last, step)
            for name in _scores_of(record):
                curves.setdefault(name, {})[measured_at] = record[name]
            continue
        if not last:
            for curve in curves.values():
                for replaced in [one for one in curve if one >= step]:
                    del curve[replaced]
        last = step
        curves.setdefault('loss', {})[step] = record['loss']


def _scores_of(record: dict[str, Any]) -> list[str]:
    return [name for name in record if name.rpartition('/')[2] in SCORES]


def draw_curves(curves: dict[str, Curve], file: Path) -> Path:
    """Plot loss and scores against the iteration, one below the other; return the file."""
    from matplotlib.figure import Figure

    scores = [name for name, curve in curves.items() if name != 'loss' and curve]
    figure = Figure(figsize=(8, 3 + 2.5 * bool(scores)), layout='constrained')
    axes = figure.subplots(1 + bool(scores), 1, sharex=True, squeeze=False)[:, 0]
    # The mark at the end shows a training of one iteration, too.
    axes[0].plot(*zip(*sorted(curves['loss'].items()), strict=True), marker='o', markevery=[-1])
    axes[0].set_ylabel('loss in training')
    for name in scores:
        axes[1].plot(*zip(*sorted(curves[name].items()), strict=True), marker='o', label=name)
        axes[1].set_ylabel('score in validation')
        axes[1].legend()
    axes[-1].set_xlabel('iteration')
    for axis in axes:
        axis.spines[['top', 'right']].set_visible(False)
        axis.grid(alpha=0.25)
    with atomic_write(file) as stream:
        figure.savefig(stream, format='png', dpi=120)
    return file
