"""Parts that all command lines share: parser, common arguments, sizes, old flags, and one way to report errors.

A tool is::

    def main(argv: Sequence[str] | None = None) -> None:
        parser = make_parser(__doc__)
        parser.add_argument(...)
        args = parser.parse_args(argv)
        ...

    if __name__ == '__main__':
        run(main)
"""

import argparse
import inspect
import os
import re
import sys
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from mmengine.config import Config, DictAction

from ..checkpoints import CheckpointError
from ..weights import find_shipped, shipped_weights
from .launch import read_config


class Parser(argparse.ArgumentParser):
    """Argument parser that still accepts the old names of flags, with a warning.

    Args:
        doc: Docstring of the tool, shown by ``--help``.
        renamed: New flag of each old one: ``{'--fresh': '--overwrite'}``.
    """

    def __init__(self, doc: str | None, renamed: Mapping[str, str] | None = None) -> None:
        super().__init__(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
        self.renamed = dict(renamed or {})

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        words = sys.argv[1:] if args is None else [str(word) for word in args]
        return super().parse_known_args([self._current(word) for word in words], namespace)

    def _current(self, word: str) -> str:
        flag, equals, value = word.partition('=')
        if flag not in self.renamed:
            return word
        warn_deprecated(flag, self.renamed[flag])
        return f'{self.renamed[flag]}{equals}{value}'


def make_parser(doc: str | None, *, renamed: Mapping[str, str] | None = None) -> Parser:
    """Parser of a tool, from its ``__doc__`` and the new flag of each old one."""
    return Parser(doc, renamed)


def warn_deprecated(old: str, new: str) -> None:
    """Print on stderr that ``old`` is accepted for one more release."""
    print(f'warning: {old} is deprecated and goes with the next release; use {new}', file=sys.stderr)


def run(main: Callable[[], object], *, interrupted: str = 'interrupted') -> None:
    """Run a tool; a user's mistake ends it with one line and exit code 2.

    A user's mistake is an error that the package or the tool itself raises, a file that cannot be opened, or a package
    that is not installed. Any other error keeps its traceback: its message alone does not locate the fault.

    Args:
        main: Parses the command line and does the work.
        interrupted: Line printed when the user interrupts; the exit code is 130.
    """
    sys.stdout.reconfigure(errors='backslashreplace')  # type: ignore[union-attr]  # file names that are not UTF-8
    try:
        main()
    except KeyboardInterrupt:
        _stop(interrupted, 130)
    except BrokenPipeError:  # the reader of a pipe, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ImportError, CheckpointError) as error:
        _stop(f'error: {error}', 2)
    except (ValueError, TypeError) as error:
        if not _raised_within(error, Path(__file__).parents[1], Path(inspect.getfile(main)).parent):
            raise
        _stop(f'error: {error}', 2)


def _raised_within(error: BaseException | None, *folders: Path) -> bool:
    """True if a file of these folders raised the error, or the one that it replaced (mmengine's registries do)."""
    while error is not None:
        frames = traceback.extract_tb(error.__traceback__)
        if frames and any(Path(frames[-1].filename).is_relative_to(folder) for folder in folders):
            return True
        error = error.__context__
    return False


def _stop(message: str, code: int) -> NoReturn:
    print(' '.join(line.strip() for line in message.splitlines()), file=sys.stderr)
    sys.exit(code)


def parse_size(text: str) -> tuple[int, int]:
    """``HEIGHTxWIDTH`` or ``SIDE``, in px, to (height, width)."""
    match = re.fullmatch(r'([1-9]\d*)(?:x([1-9]\d*))?', text)
    if not match:
        raise argparse.ArgumentTypeError(
            f'HEIGHTxWIDTH or SIDE in px is expected, such as 480x640 or 224, got {text!r}'
        )
    return int(match[1]), int(match[2] or match[1])


def add_shape_argument(parser: argparse.ArgumentParser) -> None:
    """Add ``--shape HEIGHTxWIDTH``, and for one more release ``--size WIDTHxHEIGHT``."""
    parser.add_argument(
        '--shape', type=parse_size, metavar='HEIGHTxWIDTH', help="resize the image to it; default: the image's own size"
    )
    parser.add_argument('--size', dest='shape', type=_parse_old_size, help=argparse.SUPPRESS)


def _parse_old_size(text: str) -> tuple[int, int]:
    width, height = parse_size(text)
    warn_deprecated('--size WIDTHxHEIGHT', '--shape HEIGHTxWIDTH')
    return height, width


def parse_model(text: str) -> tuple[str, str, str]:
    """``NAME=CONFIG:CHECKPOINT``, or shipped weights as ``NAME`` or ``NAME=SHIPPED``, to (name, config, checkpoint)."""
    name, _, value = text.partition('=')
    try:
        config, checkpoint, _ = split_model((value or name).split(':', maxsplit=1))
    except ValueError:
        config = None
    if not (name and config and checkpoint):
        raise argparse.ArgumentTypeError(f'NAME=CONFIG:CHECKPOINT or shipped weights are expected, got {text!r}')
    return name, config, checkpoint


def positive(text: str) -> int:
    """An integer of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f'an integer of at least 1 is expected, got {text!r}')
    return int(text)


def add_config_arguments(parser: argparse.ArgumentParser) -> None:
    """Add ``--cfg-options``, for every tool that reads a config."""
    parser.add_argument(
        '--cfg-options',
        nargs='+',
        action=DictAction,
        metavar='KEY=VALUE',
        help='override values of the config: train_dataloader.batch_size=4 model.backbone.arch=small taps="[2,5,8,11]"',
    )


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of a tool that starts a Runner, perhaps on many GPUs."""
    add_config_arguments(parser)
    parser.add_argument('--work-dir', help='folder of logs and checkpoints (default: work_dirs/<name of the config>)')
    parser.add_argument('--launcher', choices=('none', 'pytorch', 'slurm', 'mpi'), default='none', help='job launcher')
    # torch.distributed.launch passes it, torchrun sets the variable instead.
    parser.add_argument('--local_rank', '--local-rank', type=int, default=0, help=argparse.SUPPRESS)


def config_from(args: argparse.Namespace, path: str | os.PathLike[str] | None = None) -> Config:
    """The config ``path`` (default: ``args.config``), with the options that the two functions above added."""
    os.environ.setdefault('LOCAL_RANK', str(getattr(args, 'local_rank', 0)))
    return read_config(
        args.config if path is None else path,
        cfg_options=args.cfg_options,
        work_dir=getattr(args, 'work_dir', None),
        launcher=getattr(args, 'launcher', 'none'),
    )


def add_model_arguments(parser: argparse.ArgumentParser, *, images: bool = False, exported: bool = False) -> None:
    """Add ``CONFIG CHECKPOINT [IMAGE ...]``, as ``args.config`` and ``args.rest``; :func:`split_model` reads them."""
    alone = 'the name of shipped weights' + (' or a file that tools/export.py wrote' if exported else '')
    parser.add_argument('config', metavar='CONFIG', help=f'config file; {alone} stands alone for CONFIG CHECKPOINT')
    rest = 'checkpoint file or name of shipped weights'
    if images:
        rest += "; then image files, folders of images, patterns ('**' is any folders)"
    parser.add_argument('rest', nargs='*', metavar='CHECKPOINT IMAGE' if images else 'CHECKPOINT', help=rest)


def split_model(
    words: Sequence[str], *, images: bool = False, exported: Collection[str] = ()
) -> tuple[str | None, str, list[str]]:
    """Split positional arguments into config, checkpoint and the images behind them.

    Args:
        words: ``CONFIG CHECKPOINT``, the name of shipped weights, or an exported file; then the images.
        images: Images must follow; without it nothing may.
        exported: File endings of exported models, where these are accepted.

    Returns:
        tuple: The config file (``None`` for an exported model), the checkpoint, and the images.

    Raises:
        ValueError: ``words`` do not start with a model, or the images are missing.
    """
    first, *rest = words or ['']
    config: str | None
    if first.endswith('.py') and rest:
        config, checkpoint, rest = first, rest[0], rest[1:]
    elif Path(first).suffix in exported:
        config, checkpoint = None, first
    elif first in shipped_weights():
        config, checkpoint = str(find_shipped(first).config_file), first
    else:
        files = f', an exported model ({", ".join(exported)})' if exported else ''
        shipped = '; '.join(f'{name} ({entry.about})' for name, entry in shipped_weights().items())
        raise ValueError(
            f'the first arguments must be a model: CONFIG.py CHECKPOINT{files}, or the name of shipped weights: '
            f'{shipped or "(none)"}; got {" ".join(words)!r}'
        )
    if images and not rest:
        raise ValueError(f'images: none are given behind the model {checkpoint!r}')
    if rest and not images:
        raise ValueError(f'only a model is accepted, got {" ".join(rest)!r} behind it')
    return config, checkpoint, rest


def print_table(records: Sequence[Mapping[str, Any]]) -> None:
    """Print records as a table; fractions get four digits."""
    from rich.console import Console
    from rich.table import Table

    table = Table(*records[0])
    for record in records:
        table.add_row(*(_short(value) for value in record.values()))
    Console().print(table)


def _short(value: Any) -> str:
    try:
        return f'{float(value):.4g}' if '.' in str(value) else str(value)
    except ValueError:
        return str(value)
