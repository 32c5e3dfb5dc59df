"""Common parts of the command lines: parser, arguments, sizes and errors.

A command defines ``main(argv=None)``, which uses :func:`make_parser`, and ends in ``run(main)``. It
imports the package after parsing its arguments, because importing torch and mmengine takes seconds.
"""

import argparse
import atexit
import ctypes
import getpass
import glob
import importlib.util
import json
import os
import re
import shutil
import sys
import tempfile
import textwrap
import traceback
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from mmengine.config import Config


def package_folder() -> Path:
    """Return the folder of the package without importing it."""
    package = importlib.util.find_spec('cpvt_backbones')
    assert package is not None and package.origin is not None
    return Path(package.origin).parent


def _load(name: str) -> Any:
    """Load a module without torch from the package, without importing the package."""
    spec = importlib.util.spec_from_file_location(f'cpvt_{name}', package_folder() / f'{name}.py')
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if TYPE_CHECKING:
    from cpvt_backbones import plain as plain
    from cpvt_backbones import text as text
else:
    plain, text = _load('plain'), _load('text')

CHECKPOINT = 'file, name, or work directory (its only best_*.pth, else the newest)'
WEIGHT_SUFFIXES = ('.pth', '.pt', '.pt2', '.onnx', '.safetensors', '.bin', '.ckpt')


class HelpFormatter(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Formatter that fills paragraphs but keeps lines of commands, and adds defaults.

    It does not list the options twice, and does not break names at hyphens.
    """

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        paragraphs = []
        for paragraph in text.strip().split('\n\n'):
            if re.match(r' *(cpvt|python|torchrun|pip) ', paragraph):
                paragraphs.append(textwrap.indent(textwrap.dedent(paragraph), '    '))
            else:
                paragraphs.append('\n'.join(self._split_lines(paragraph, width)))
        return '\n\n'.join(paragraphs)

    def _split_lines(self, text: str, width: int) -> list[str]:
        words = ' '.join(text.split())
        return textwrap.wrap(words, width, break_on_hyphens=False, break_long_words=False)

    def add_usage(self, usage: Any, actions: Any, groups: Any, prefix: Any = None) -> None:
        self._prog += ' [options]'
        needed = [action for action in actions if action.required or not action.option_strings]
        super().add_usage(usage, needed, [], prefix)

    def _format_args(self, action: argparse.Action, default_metavar: str) -> str:
        if action.nargs == argparse.ONE_OR_MORE and not isinstance(action.metavar, tuple):
            return f'{self._metavar_formatter(action, default_metavar)(1)[0]} ...'
        return super()._format_args(action, default_metavar)

    def _get_help_string(self, action: argparse.Action) -> str | None:
        known = action.default in (None, False, []) or 'default' in (action.help or '')
        return action.help if known else super()._get_help_string(action)


class Parser(argparse.ArgumentParser):
    """Parser that accepts only full names of options, and suggests one for a wrong name.

    ``checks`` run before the packages are imported, which takes seconds.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{'allow_abbrev': False, **options})
        self.checks: list[Callable[[argparse.Namespace], object]] = []

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse, then run the checks; a wrong argument ends the program with a message."""
        found, unknown = self.parse_known_args(args, namespace)
        if unknown:
            self.error(f'unrecognized arguments: {" ".join(unknown)}{self._advice(unknown)}')
        for check in self.checks:
            check(found)
        self._announce()
        return found

    def error(self, message: str) -> NoReturn:
        """End the program with a mistake in the arguments, and the usage."""
        self.exit(2, f'error: {text.printable(message)}\n{self.format_usage()}')

    def _announce(self) -> None:
        """Print that the packages are being loaded, which can take a minute on a busy machine."""
        ranks = (os.environ.get(name, '0') for name in ('RANK', 'SLURM_PROCID'))
        if 'torch' in sys.modules or set(ranks) != {'0'}:
            return
        takes_config = any(action.dest == 'cfg_options' for action in self._actions)
        what = 'PyTorch and the toolbox' if takes_config else 'PyTorch'
        print(f'loading {what} ...', file=sys.stderr, flush=True)

    def _advice(self, unknown: Sequence[str]) -> str:
        wrong = next((word for word in unknown if word.startswith('--')), '').partition('=')[0]
        known = [
            option
            for action in self._actions
            for option in action.option_strings
            if option.startswith('--') and action.help != argparse.SUPPRESS
        ]
        similar = [option for option in known if wrong and option.startswith(wrong)]
        similar = similar or plain.most_similar(wrong, known)
        return f'; did you mean {" or ".join(similar)}?' if similar else ''


def make_parser(doc: str | None) -> Parser:
    """Make the parser of a tool from its ``__doc__``; errors of :func:`run` name its options."""
    formatter = partial(HelpFormatter, max_help_position=30)
    parser = Parser(description=doc, formatter_class=formatter)
    _PARSERS.append(parser)
    return parser


_PARSERS: list[Parser] = []  # the last parser belongs to the tool that runs


def command(name: str) -> str:
    """Return the command line of a command, as ``cpvt`` or as a script, like this program's."""
    if sys.argv[0].startswith('cpvt '):
        return f'cpvt {name}'
    return f'python tools/{name.replace("-", "_")}.py'


def print_next(*commands: str) -> None:
    """Print the commands that come after this program's."""
    print('\n  '.join(['next:', *commands]))


def keep_memory() -> bool:
    """Make glibc keep freed memory, for ``cpvt infer``.

    By default, it returns large blocks and fetches them again page by page: 106,000 page faults for
    an image of 800 x 1344 px.

    Returns:
        ``False`` with another C library, or if the environment has its own settings.
    """
    if any(name.startswith(('MALLOC_', 'GLIBC_TUNABLES')) for name in os.environ):
        return False
    try:
        library = ctypes.CDLL(None)
        assert library.gnu_get_libc_version
        # M_MMAP_THRESHOLD and M_TRIM_THRESHOLD, in bytes. Setting one stops glibc from adapting the
        # other.
        return bool(library.mallopt(-3, 1 << 30) and library.mallopt(-1, (1 << 31) - 1))
    except (AttributeError, OSError, TypeError):
        return False


def prepare() -> None:
    """Provide what torch and the toolboxes need on import and a container may lack.

    These are a user name, a home and a cache for numba, which the toolboxes import through imgaug.
    Folders are new, because code is loaded from them, and are deleted when the process ends.

    Raises:
        OSError: File names are ASCII in this locale, so that names could not be written.
    """
    if sys.getfilesystemencoding() == 'ascii':  # only if the environment forbids UTF-8
        raise OSError(
            'names of files are ASCII in this locale: unset PYTHONUTF8, or set PYTHONUTF8=1 (got'
            f' {os.environ.get("PYTHONUTF8")!r})'
        )
    try:
        getpass.getuser()
    except (KeyError, OSError):  # before Python 3.13, from it on; as with docker run --user
        os.environ['USER'] = f'user{os.getuid()}'
    if not os.path.isabs(os.path.expanduser('~')):
        os.environ['HOME'] = _temporary_folder()
        print('warning: HOME is not set, so that downloads are not kept', file=sys.stderr)
    cache = os.path.abspath(os.environ.get('XDG_CACHE_HOME') or os.path.expanduser('~/.cache'))
    while not os.path.exists(cache):
        cache = os.path.dirname(cache)
    is_writable = os.path.isdir(cache) and os.access(cache, os.W_OK | os.X_OK)
    if not is_writable and not os.environ.get('NUMBA_CACHE_DIR'):
        os.environ['NUMBA_CACHE_DIR'] = _temporary_folder()


def _temporary_folder() -> str:
    """Create a folder that is deleted when this process ends, but not when a worker ends."""
    folder, owner = tempfile.mkdtemp(prefix='cpvt-'), os.getpid()

    def remove() -> None:
        if os.getpid() == owner:
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return folder


@contextmanager
def quiet() -> Iterator[None]:
    """Silence warnings of other packages about their future, unless ``CPVT_DEBUG=1`` is set.

    Also that of mmdet about the package of its FasterCocoMetric, which no recipe uses.
    """
    if is_debugging():
        yield
        return
    os.environ.setdefault('TORCH_CPP_LOG_LEVEL', 'ERROR')  # torch reads it when it is imported
    with warnings.catch_warnings():
        warnings.simplefilter('ignore', FutureWarning)
        warnings.filterwarnings('ignore', module='mmdet.evaluation.metrics.faster_coco_metric')
        yield


def is_debugging() -> bool:
    """``True`` if ``CPVT_DEBUG=1`` is in the environment."""
    return os.environ.get('CPVT_DEBUG', '0') not in ('', '0')


class UsageError(ValueError):
    """Raised for wrong arguments before the package, which has InputError, is imported."""


def run(main: Callable[[], object], *, interrupted: str = 'interrupted') -> None:
    """Run a tool, and print mistakes of the user without a traceback.

    Mistakes are an InputError of the package, a :class:`UsageError`, a file that cannot be opened
    and a missing package. They end the program with one line and exit code 2. Ctrl-C ends it with
    ``interrupted`` and 130. Other errors keep their traceback, and with ``CPVT_DEBUG=1`` in the
    environment, mistakes have one too.
    """
    sys.stdout.reconfigure(errors='backslashreplace')  # type: ignore[union-attr]  # file names that are not UTF-8
    try:
        prepare()
        with quiet():
            main()
    except KeyboardInterrupt as error:
        stop(str(error) or interrupted, 130)
    except BrokenPipeError:  # the reader of a pipe, such as `head`, has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ImportError, TypeError, ValueError) as error:
        if not _is_mistake(error):
            raise
        stop(f'error: {_text_of(error)}', 2)


def _text_of(error: BaseException) -> str:
    """Return the message of an error, with the path for system errors, else with the option."""
    if isinstance(error, OSError) and error.strerror and error.filename:
        path = os.fsdecode(error.filename)
        start = '' if os.path.isabs(path) else f' (the path starts from {os.getcwd()})'
        return f'{path!r}: {error.strerror}{start}'
    argument = getattr(error, 'argument', None)
    if argument is not None:
        return _option_of(argument) + str(error).removeprefix(argument)
    return str(error)


def _option_of(argument: str) -> str:
    """Return the option that sets an argument, or the argument's name."""
    for action in _PARSERS[-1]._actions if _PARSERS else ():
        if action.dest == argument and action.option_strings:
            return max(action.option_strings, key=len)
    return argument


def _is_mistake(error: BaseException) -> bool:
    """``True`` for a mistake of the user, as :func:`run` defines it."""
    if isinstance(error, ImportError):
        return (error.name or '').partition('.')[0] not in ('cpvt', 'cpvt_backbones')
    errors = sys.modules.get('cpvt_backbones.errors')  # else nothing raised its errors
    if errors is not None and isinstance(error, errors.InputError):
        return True
    return isinstance(error, OSError | UsageError)


def stop(message: str, code: int) -> NoReturn:
    """End the program with a line on stderr, and with the traceback if ``CPVT_DEBUG=1``."""
    if is_debugging():
        traceback.print_exc()
    line = ' '.join(line.strip() for line in message.splitlines())
    print(text.printable(line), file=sys.stderr)
    sys.exit(code)


def parse_size(text: str) -> tuple[int, int]:
    """Parse ``HEIGHTxWIDTH`` or ``SIDE``, in px, as (height, width)."""
    match = re.fullmatch(r'([1-9]\d*)(?:x([1-9]\d*))?', text)
    if not match:
        raise argparse.ArgumentTypeError(
            f'HEIGHTxWIDTH or SIDE in px is expected, such as 480x640, got {text!r}'
        )
    return int(match[1]), int(match[2] or match[1])


def parse_counted_size(text: str, form: str = 'HEIGHTxWIDTH:COUNT') -> tuple[int, int, int]:
    """Parse ``HEIGHTxWIDTH:COUNT`` or ``SIDE:COUNT`` as (height, width, count).

    The error contains ``form``.
    """
    size, colon, count = text.partition(':')
    if not colon:
        raise argparse.ArgumentTypeError(f'{form} is expected, such as 640x1024:8, got {text!r}')
    return *parse_size(size), positive(count)


def parse_model(text: str) -> tuple[str, str, str]:
    """Parse ``NAME=CONFIG:CHECKPOINT``, ``NAME=SHIPPED`` or ``SHIPPED``.

    Returns:
        Name, config and checkpoint.
    """
    name, _, value = text.partition('=')
    config: str | None
    config, _, checkpoint = (value or name).partition(':')
    shipped = shipped_configs()
    if config in shipped and not checkpoint:
        return name, shipped[config], config
    if not (name and config.endswith('.py') and checkpoint):
        raise argparse.ArgumentTypeError(
            'NAME=CONFIG:CHECKPOINT or shipped weights are expected, got'
            f' {text!r}{did_you_mean(value or name)}'
        )
    return name, config, checkpoint


def positive(text: str) -> int:
    """Parse an integer of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f'an integer of at least 1 is expected, got {text!r}')
    return int(text)


def natural(text: str) -> int:
    """Parse an integer of at least 0."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f'an integer of at least 0 is expected, got {text!r}')
    return int(text)


def fraction(text: str) -> float:
    """Parse a number from 0 to 1."""
    try:
        number = float(text)
    except ValueError:
        number = -1
    if not 0 <= number <= 1:
        raise argparse.ArgumentTypeError(f'a number in [0, 1] is expected, got {text!r}')
    return number


class Overrides(argparse.Action):
    """Collects ``KEY=VALUE ...`` as text by key; :func:`parse_values` reads the values."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        found = dict(getattr(namespace, self.dest) or {})
        for word in values:
            key, equals, value = word.partition('=')
            if not key or not equals:
                parser.error(f'argument {option_string}: KEY=VALUE is expected, got {word!r}')
            found[key] = value
        setattr(namespace, self.dest, found)


def parse_values(overrides: Mapping[str, str]) -> dict[str, Any]:
    """Parse values of :class:`Overrides` like mmengine's ``DictAction``, but keep spaces."""
    from mmengine.config import DictAction

    values = {}
    for key, text in overrides.items():
        namespace = argparse.Namespace(found=None)
        try:
            DictAction(['--found'], 'found')(None, namespace, [f'value={text}'])
        except AssertionError as error:
            raise UsageError(f'--cfg-options: {key}={text}: {error}') from error
        value = namespace.found['value']
        values[key] = text.strip('\'"') if isinstance(value, str) else value
    return values


def add_config_arguments(parser: argparse.ArgumentParser) -> None:
    """Add ``--cfg-options``."""
    overrides = (
        'values of the config to replace: model.backbone.arch=small '
        'model.backbone.out_indices="[1,2,3]"'
    )
    parser.add_argument(
        '--cfg-options', nargs='+', action=Overrides, metavar='KEY=VALUE', help=overrides
    )


def check_config(path: str) -> None:
    """Raise :class:`UsageError` for a missing config file."""
    if not Path(path).is_file():
        raise UsageError(f'there is no config file {path!r}')


def check_checkpoint(name: str, argument: str = 'checkpoint') -> None:
    """Raise :class:`UsageError` for a missing file or a mistyped name of shipped weights.

    The package checks other names and addresses.
    """
    if '://' in name or Path(name).expanduser().exists() or name in shipped_configs():
        return
    advice = did_you_mean(name)
    if advice or Path(name).suffix in WEIGHT_SUFFIXES:
        raise UsageError(f'{argument}: there is no file or folder {name!r}{advice}')


def check_image(pattern: str) -> None:
    """Raise :class:`UsageError` for a missing image or folder; the package checks other inputs."""
    if '://' in pattern or glob.has_magic(pattern):
        return
    if not os.path.lexists(Path(pattern).expanduser()):
        raise UsageError(f'inputs: there is no file or folder {pattern!r}')


def shipped_index() -> dict[str, dict[str, Any]]:
    """Return shipped weights and published models by name, without importing the package."""
    index = package_folder() / 'weights' / 'index.json'
    return dict(sorted(json.loads(index.read_text(encoding='utf-8')).items()))


def shipped_configs() -> dict[str, str]:
    """Return the config files of shipped weights and published models by name."""
    folder = package_folder()
    root = folder / '.mim' if (folder / '.mim' / 'configs').is_dir() else folder.parent
    return {name: str(root / entry['config']) for name, entry in shipped_index().items()}


def did_you_mean(name: str) -> str:
    """Return ``'; did you mean NAME?'`` if shipped weights have a similar name, else ``''``."""
    return plain.did_you_mean(name, shipped_configs(), cutoff=0.8)


def add_run_arguments(parser: Parser) -> None:
    """Add the options of a tool that starts a Runner, including ``--cfg-options``."""
    add_config_arguments(parser)
    parser.add_argument(
        '--work-dir',
        help='folder of logs and checkpoints (default: work_dirs/<name of the config>)',
    )
    parser.add_argument(
        '--launcher',
        choices=('none', 'pytorch', 'slurm', 'mpi'),
        default='none',
        help='job launcher',
    )
    # torch.distributed.launch passes it; torchrun sets LOCAL_RANK.
    parser.add_argument('--local_rank', '--local-rank', type=int, default=0, help=argparse.SUPPRESS)


def config_from(args: argparse.Namespace, path: str | os.PathLike[str] | None = None) -> 'Config':
    """Read the config ``path`` (default: ``args.config``) with the options of a tool."""
    os.environ.setdefault('LOCAL_RANK', str(getattr(args, 'local_rank', 0)))
    from cpvt_backbones.toolboxes import read_config

    options = {key: getattr(args, key) for key in ('work_dir', 'launcher') if hasattr(args, key)}
    cfg_options = parse_values(args.cfg_options or {})
    return read_config(args.config if path is None else path, cfg_options=cfg_options, **options)


def add_model_arguments(parser: Parser, *, images: bool = False, exported: bool = False) -> None:
    """Add ``CONFIG CHECKPOINT [IMAGE ...]``, as ``args.config``, ``checkpoint`` and ``inputs``.

    :func:`split_model` tells them apart, when the arguments are checked.
    """
    alone = 'the name of a shipped or published model' + (
        ' or a file of cpvt export' if exported else ''
    )
    parser.add_argument(
        'config', metavar='CONFIG', help=f'config file; {alone} replaces CONFIG CHECKPOINT'
    )
    rest = "; then image files, folders, patterns ('**' is any folders)" if images else ''
    metavar = 'CHECKPOINT IMAGE' if images else 'CHECKPOINT'
    parser.add_argument('rest', nargs='*', metavar=metavar, help=f'{CHECKPOINT}{rest}')

    def check(args: argparse.Namespace) -> None:
        if getattr(args, 'draw', False):  # reads only the tables of an earlier run
            return
        suffixes = plain.EXPORTED_SUFFIXES if exported else ()
        words = [args.config, *args.rest]
        found = split_model(words, images=images, exported=suffixes)
        args.config, args.checkpoint, args.inputs = found
        if args.config is not None:
            check_config(args.config)
        for image in args.inputs:
            check_image(image)
        check_checkpoint(args.checkpoint)

    parser.checks.append(check)


def split_model(
    words: Sequence[str], *, images: bool = False, exported: Collection[str] = ()
) -> tuple[str | None, str, list[str]]:
    """Split positional arguments into config, checkpoint and images.

    Args:
        words: ``CONFIG CHECKPOINT``, the name of shipped weights, or an exported file; then the
            images.
        images: Require at least one image after the model; by default, none may follow.
        exported: Accepted suffixes of exported models, whose config is ``None``.

    Raises:
        UsageError: The model or the images are missing.
    """
    shipped = shipped_configs()
    first, *rest = words or ['']
    config: str | None
    if first.endswith('.py') and rest:
        config, checkpoint, rest = first, rest[0], rest[1:]
    elif Path(first).suffix in exported:
        config, checkpoint = None, first
    elif first in shipped:
        config, checkpoint = shipped[first], first
    elif similar := did_you_mean(first):
        raise UsageError(f'{first!r} is not a model{similar}')
    else:
        files = f', or an exported model ({", ".join(exported)})' if exported else ''
        raise UsageError(
            f'{first!r} is not a model; names: docs/weights.md and docs/models.md; or give'
            f' CONFIG.py CHECKPOINT{files}'
        )
    if images and not rest:
        raise UsageError(f'images: none are given after the model {checkpoint!r}')
    if rest and not images:
        raise UsageError(f'only a model is accepted, got {" ".join(rest)!r} after it')
    return config, checkpoint, rest


def print_file_of(folder: str) -> None:
    """Print which file of a folder is taken as the checkpoint; print nothing for a file."""
    from cpvt_backbones.checkpoints import locate_checkpoint

    if Path(folder).is_dir():
        print(text.printable(f'checkpoint: {locate_checkpoint(folder)}'))


def print_table(records: Sequence[Mapping[str, Any]]) -> None:
    """Print records as a table; fractions have four significant digits.

    A narrow terminal wraps long words. Files and pipes do not.
    """
    from rich.console import Console
    from rich.table import Column, Table

    table = Table(*(Column(name, overflow='fold') for name in records[0]))
    for record in records:
        table.add_row(*(_short(value) for value in record.values()))
    Console(width=None if sys.stdout.isatty() else 10_000).print(table)


def _short(value: Any) -> str:
    try:
        return f'{float(value):.4g}' if '.' in str(value) else str(value)
    except ValueError:
        return str(value)
