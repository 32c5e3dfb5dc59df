"""Progress of a training on a terminal."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from mmengine.dist import is_main_process
from mmengine.hooks import Hook
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn


@contextmanager
def progress_bar(runner: Any) -> Iterator[None]:
    """Show a bar with the iterations done and the time left, below mmengine's log, if stdout is a terminal."""
    if not (sys.stdout.isatty() and is_main_process()):
        yield
        return
    handlers = [handler for handler in runner.logger.handlers if type(handler) is logging.StreamHandler]
    streams = [handler.stream for handler in handlers]
    with Progress('training', BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), 'left') as bar:
        task = bar.add_task('training', total=runner.max_iters, completed=runner.iter)

        class Advance(Hook):
            def after_train_iter(self, runner: Any, *args: Any, **kwargs: Any) -> None:
                bar.update(task, total=runner.max_iters, completed=runner.iter + 1)

        runner.register_hook(Advance())
        for handler in handlers:
            handler.setStream(sys.stdout)  # rich's, which prints above the bar
        try:
            yield
        finally:
            for handler, stream in zip(handlers, streams, strict=True):
                handler.setStream(stream)
