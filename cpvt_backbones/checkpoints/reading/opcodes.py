"""What reading a pickle would import, call and hash, found from its opcodes before it is read.

torch's weights-only loader runs no code, but three things cost what a file likes: a key of a dict
(nested tuples end the process), ``_codecs.encode`` (any codec, on its own results), and
``torch.Tensor(size)``. A loader that has begun cannot be stopped, so they are looked for before.
"""

import pickletools
import re
from _compat_pickle import IMPORT_MAPPING
from pickle import UnpicklingError
from typing import IO, Any

# A tensor takes 30 opcodes, two of which are calls.
MAX_OPCODES = 2_000_000
MAX_CALLS = 200_000

# Stored beside the weights by training frameworks: logs and random states of mmengine's Runner,
# command line arguments of the authors' scripts, parts of configs. They are read as stand-ins.
STAND_INS = (
    'argparse.Namespace',
    'builtins.bytes',
    'builtins.getattr',
    'builtins.slice',
    'mmengine.config.config.ConfigDict',
    'mmengine.logging.history_buffer.HistoryBuffer',
    'numpy._core.multiarray._reconstruct',
    'numpy._core.multiarray.scalar',
    'numpy.core.multiarray._reconstruct',
    'numpy.core.multiarray.scalar',
    'numpy.dtype',
    'numpy.ndarray',
    'pathlib.Path',
    'pathlib.PosixPath',
    'pathlib.WindowsPath',
    'pathlib._local.Path',
    'pathlib._local.PosixPath',
    'pathlib._local.WindowsPath',
)
# The part of torch's allow-list that dense tensors and plain data need.
_CALLED = re.compile(
    r'collections\.(OrderedDict|Counter)|_codecs\.encode|builtins\.(set|complex)'
    r'|torch\.(Size|device|_tensor\._rebuild_from_type_v2)'
    r'|torch\._utils\._rebuild_(tensor(_v[23])?|parameter(_with_state)?)'
)
_NAMED = re.compile(
    r'torch\.(Tensor|nn\.parameter\.Parameter|\w+Storage|storage\.\w+Storage'
    r'|b?float\d\w*|u?int\d+|complex\d+|long|half|double|bool)'
)

# Opcodes that torch's loader knows, by what they do to its stack.
_PUT = ('BINPUT', 'LONG_BINPUT')
_GET = ('BINGET', 'LONG_BINGET')
_VALUES = (
    *('NONE', 'NEWTRUE', 'NEWFALSE', 'BININT', 'BININT1', 'BININT2', 'LONG1', 'BINFLOAT'),
    *('BINUNICODE', 'SHORT_BINSTRING'),
)
_TO_MARK = ('TUPLE', 'APPENDS', 'SETITEMS')
_TAKEN = dict(
    **dict(EMPTY_TUPLE=0, TUPLE1=1, TUPLE2=2, TUPLE3=3, EMPTY_LIST=0, EMPTY_DICT=0),
    **dict(APPEND=1, SETITEM=2, REDUCE=2, NEWOBJ=2, BUILD=1, BINPERSID=1),
)


class Refused(ValueError):
    """A pickle that is not read; the reason completes "the file is refused: "."""


class _Name(str):
    """Dotted name of a class or function."""


_OTHER = object()


class PickleScan:
    """Checks the pickles of one file by the opcodes that torch's weights-only loader knows.

    It keeps the loader's stack with names, plain values, lists and tuples as they are, and stands
    for everything else. So it knows the arguments of each call and the keys of each dict, and
    hashes none.
    """

    def __init__(self) -> None:
        self.opcodes = 0
        self.calls = 0

    def check(self, stream: IO[bytes]) -> None:
        """Read one pickle from a stream.

        Raises:
            Refused: It names or calls what weights do not need, has a key that is no plain value,
                or too many opcodes.
            UnpicklingError: It is damaged or no pickle of torch.save.
        """
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}
        try:
            for opcode, argument, _ in pickletools.genops(stream):
                self.opcodes += 1
                if self.opcodes > MAX_OPCODES:
                    raise Refused(f'its pickle has more than {MAX_OPCODES:,} opcodes')
                self._follow(opcode.name, argument)
        except Refused:
            raise
        except LookupError as error:  # its text is a position or key alone
            raise UnpicklingError('a value is missing') from error
        except (AttributeError, TypeError, ValueError) as error:
            raise UnpicklingError(str(error)) from error

    def _follow(self, name: str, argument: Any) -> None:
        """Do to the stack what the loader does for an opcode."""
        if name == 'PROTO' and argument != 2:
            raise Refused(f'its pickle is of protocol {argument}; torch.save writes protocol 2')
        if name in ('PROTO', 'STOP'):
            return
        if name == 'MARK':
            self._marks.append(len(self._stack))
        elif name == 'GLOBAL':
            self._stack.append(_allowed(*argument.split(' ', 1)))
        elif name in _VALUES:
            self._stack.append(argument)
        elif name in _PUT:
            self._memo[argument] = self._stack[-1]
        elif name in _GET:
            self._stack.append(self._memo[argument])
        else:
            self._combine(name, self._take(name))

    def _take(self, name: str) -> list[Any]:
        """Take from the stack what an opcode takes."""
        if name in _TO_MARK:
            start = self._marks.pop()
        elif name in _TAKEN:
            start = len(self._stack) - _TAKEN[name]
        else:
            raise UnpicklingError(f'opcode {name}')
        if start < (self._marks[-1] if self._marks else 0):
            raise UnpicklingError('too few values')
        taken = self._stack[start:]
        del self._stack[start:]
        return taken

    def _combine(self, name: str, taken: list[Any]) -> None:
        """Put onto the stack what an opcode makes of the values that it took."""
        stack = self._stack
        if 'TUPLE' in name:
            stack.append(tuple(taken))
        elif name == 'EMPTY_LIST':
            stack.append([])
        elif name == 'EMPTY_DICT':
            stack.append({})  # stays empty
        elif name in ('APPEND', 'APPENDS'):
            stack[-1].extend(taken)
        elif name in ('SETITEM', 'SETITEMS'):
            for key in taken[::2]:
                _check_key(key)
        elif name in ('REDUCE', 'NEWOBJ'):
            self.calls += 1
            if self.calls > MAX_CALLS:
                raise Refused(f'its pickle has more than {MAX_CALLS:,} tensors and other objects')
            _check_call(*taken)
            stack.append(_OTHER)
        elif name == 'BINPERSID':
            stack.append(_OTHER)


def _allowed(module: str, name: str) -> _Name:
    path = f'{IMPORT_MAPPING.get(module, module)}.{name}'  # torch.save writes names of Python 2
    if path not in STAND_INS and not _CALLED.fullmatch(path) and not _NAMED.fullmatch(path):
        advice = (
            'a checkpoint needs only dense tensors and plain data; if you trust it, save its state'
            ' dict alone'
        )
        raise Refused(f'opening it would import {ascii(path)[1:-1]:.100}, and {advice}')
    return _Name(path)


def _check_call(function: Any, arguments: Any) -> None:
    if type(function) is not _Name or type(arguments) is not tuple:
        raise Refused('it calls a value that is no function')
    if function not in STAND_INS and not _CALLED.fullmatch(function):
        raise Refused(f'it calls {function}')
    _check_arguments(function, arguments)


def _check_arguments(function: str, arguments: tuple[Any, ...]) -> None:
    if function == '_codecs.encode':
        if arguments[1:] != ('latin1',) or type(arguments[0]) is not str:
            raise Refused('it encodes text otherwise than as latin1')
    elif function == 'collections.Counter':
        if not all(type(argument) is dict for argument in arguments):
            raise Refused('it counts other things than those of a dict')
    elif function == 'torch._tensor._rebuild_from_type_v2':  # a tensor with Python attributes
        _check_rebuild(arguments[0])
    elif function == 'builtins.set':
        for item in _items(arguments):
            _check_key(item)
    elif function == 'collections.OrderedDict':
        for pair in _items(arguments):  # Python 2 stores a list of pairs
            _check_key(pair[0])


def _check_rebuild(function: Any) -> None:
    if type(function) is not _Name or not function.startswith('torch._utils._rebuild_'):
        raise Refused('it makes a tensor by another function than those of torch')


def _items(arguments: tuple[Any, ...]) -> Any:
    """The items of the only argument, a list; none without an argument."""
    if not arguments:
        return ()
    if len(arguments) > 1 or type(arguments[0]) is not list:
        raise Refused('it makes a set or dict of something else than a list')
    return arguments[0]


def _check_key(key: Any) -> None:
    if type(key) not in (str, bytes, int, float, type(None)):
        kind = 'a tuple' if type(key) is tuple else 'an object'
        raise Refused(f'a key of a dict is {kind}; accepted are text and numbers')
    if type(key) is int and not -(2**63) <= key < 2**63:
        raise Refused('a key of a dict is an integer of more than 8 bytes')
