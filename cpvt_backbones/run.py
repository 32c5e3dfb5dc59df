"""Run another project's script after importing this package: ``python -m cpvt_backbones.run FILE``.

mmdet's ``tools/test.py`` and others import mmdet before they read a config that names this package.
"""

import sys
from collections.abc import Sequence
from pathlib import Path


def run_script(arguments: Sequence[str]) -> None:
    """Run a Python file like ``python FILE ...``, in this process.

    The main module does not change. So a spawned worker imports this package before it unpickles
    objects of a toolbox.

    Args:
        arguments: The file, and its arguments for ``sys.argv``.

    Raises:
        SystemExit: The file is missing, or the script raises it.
    """
    if not arguments:
        raise SystemExit('error: name a script and its arguments')
    file = Path(arguments[0])
    if not file.is_file():
        raise SystemExit(f'error: there is no script {str(file)!r}')
    code = compile(file.read_bytes(), str(file), 'exec', dont_inherit=True)
    sys.argv = list(arguments)
    sys.path[0] = str(file.resolve().parent)  # the script may import its neighbours
    main = sys.modules['__main__']
    main.__file__ = str(file)
    exec(code, vars(main))


if __name__ == '__main__':
    run_script(sys.argv[1:])
