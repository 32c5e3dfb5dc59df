"""What reading a pickle would import, call and hash, found from its opcodes before it is read."""

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


class Refused(ValueError):
    """A pickle that is not read; the reason completes "the file is refused: "."""


class _Name(str):
    """Dotted name of a class or function."""


_DICT, _OTHER = object(), object()


class PickleScan:
    """Checks the pickles of one file by the opcodes that torch's weights-only loader knows.

    It keeps the loader's stack with names, plain values, lists and tuples as they are, and places
    for everything else. So it knows the arguments of each call and the keys of each dict, and
    hashes none: a tuple nested deep or shared often, or an integer of many bytes, as a key can
    crash or stop the interpreter.
    """

    def __init__(self) -> None:
        self.opcodes = 0
        self.calls = 0

    def check(self, stream: IO[bytes]) -> None:
        """Read one pickle from a stream.

        Raises:
            Refused: It names or calls what weights do not need, has a key that is no plain value,
                or too many opcodes.
            UnpicklingError: It is damaged or no pickle of protocol 2.
        """
        stack: list[Any] = []
        marks: list[int] = []
        memo: dict[int, Any] = {}

        def to_mark() -> list[Any]:
            start = marks.pop()
            items = stack[start:]
            del stack[start:]
            return items

        try:
            for opcode, found, _ in pickletools.genops(stream):
                argument: Any = found
                self.opcodes += 1
                if self.opcodes > MAX_OPCODES:
                    raise Refused(f'its pickle has more than {MAX_OPCODES:,} opcodes')
                match opcode.name:
                    case 'BINPUT' | 'LONG_BINPUT':
                        memo[argument] = stack[-1]
                    case 'BINGET' | 'LONG_BINGET':
                        stack.append(memo[argument])
                    case 'MEMOIZE':
                        memo[len(memo)] = stack[-1]
                    case 'MARK':
                        marks.append(len(stack))
                    case 'TUPLE':
                        stack.append(tuple(to_mark()))
                    case 'TUPLE1' | 'TUPLE2' | 'TUPLE3':
                        size = int(opcode.name[-1])
                        stack[-size:] = [tuple(stack[-size:])]
                    case 'EMPTY_TUPLE':
                        stack.append(())
                    case 'EMPTY_LIST':
                        stack.append([])
                    case 'EMPTY_DICT':
                        stack.append(_DICT)
                    case 'EMPTY_SET':
                        stack.append(_OTHER)
                    case 'APPEND':
                        item = stack.pop()
                        stack[-1].append(item)
                    case 'APPENDS':
                        items = to_mark()
                        stack[-1].extend(items)
                    case 'SETITEM':
                        _, key = stack.pop(), stack.pop()
                        _check_key(key)
                    case 'SETITEMS':
                        for key in to_mark()[::2]:
                            _check_key(key)
                    case 'GLOBAL' | 'INST':
                        stack.append(_allowed(*argument.split(' ', 1)))
                    case 'STACK_GLOBAL':
                        name, module = stack.pop(), stack.pop()
                        stack.append(_allowed(module, name))
                    case 'REDUCE' | 'NEWOBJ':
                        arguments = stack.pop()
                        stack[-1] = self._call(stack[-1], arguments)
                    case 'BUILD':
                        stack.pop()
                    case 'BINPERSID':
                        stack[-1] = _OTHER
                    case 'PROTO' | 'FRAME' | 'STOP':
                        pass
                    case _ if opcode.stack_before:
                        raise UnpicklingError(f'opcode {opcode.name}')
                    case _:
                        stack.append(argument)
        except Refused:
            raise
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            raise UnpicklingError(str(error)) from error

    def _call(self, function: Any, arguments: Any) -> Any:
        """Check a call; return what stands for its result."""
        self.calls += 1
        if self.calls > MAX_CALLS:
            raise Refused(f'its pickle has more than {MAX_CALLS:,} tensors and other objects')
        if type(function) is not _Name or type(arguments) is not tuple:
            raise Refused('it calls a value that is no function')
        match function.rpartition('.')[2]:
            case _ if function in STAND_INS:
                pass
            case _ if not _CALLED.fullmatch(function):
                raise Refused(f'it calls {function}')
            case 'encode' if arguments[1:] != ('latin1',) or type(arguments[0]) is not str:
                raise Refused('it encodes text otherwise than as latin1')
            case 'encode':
                return b''
            case '_rebuild_from_type_v2' if not _rebuilds(arguments[0]):
                raise Refused('it makes a tensor by another function than those of torch')
            case 'Counter' if arguments not in ((), (_DICT,)):
                raise Refused('it counts other things than those of a dict')
            case 'set':
                for item in _items(arguments):
                    _check_key(item)
            case 'OrderedDict':  # Python 2 stores a list of pairs
                for pair in _items(arguments):
                    _check_key(pair[0])
        return _OTHER


def _rebuilds(function: Any) -> bool:
    return type(function) is _Name and function.startswith('torch._utils._rebuild_')


def _items(arguments: tuple[Any, ...]) -> Any:
    """The items of the only argument, a list; none without an argument."""
    if not arguments:
        return ()
    if len(arguments) > 1 or type(arguments[0]) is not list:
        raise Refused('it makes a set or dict of something else than a list')
    return arguments[0]


def _allowed(module: str, name: str) -> _Name:
    path = f'{IMPORT_MAPPING.get(module, module)}.{name}'  # torch.save writes names of Python 2
    if path not in STAND_INS and not _CALLED.fullmatch(path) and not _NAMED.fullmatch(path):
        advice = (
            'a checkpoint needs only dense tensors and plain data; if you trust it, save its state'
            ' dict alone'
        )
        raise Refused(f'opening it would import {ascii(path)[1:-1]:.100}, and {advice}')
    return _Name(path)


def _check_key(key: Any) -> None:
    if type(key) not in (str, bytes, int, float, type(None)):
        kind = 'a tuple' if type(key) is tuple else 'an object'
        raise Refused(f'a key of a dict is {kind}; accepted are text and numbers')
    if type(key) is int and not -(2**63) <= key < 2**63:
        raise Refused('a key of a dict is an integer of more than 8 bytes')
