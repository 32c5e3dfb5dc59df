"""Substitutes for what a container may lack: a user name, a home, a cache, a UTF-8 locale."""

import atexit
import getpass
import os
import shutil
import sys
import tempfile


def prepare() -> None:
    """Provide what torch and the toolboxes need when they are imported.

    Raises:
        OSError: The locale cannot represent file names.
    """
    check_encoding()
    name_user()
    find_home()
    find_cache()


def check_encoding() -> None:
    """Raise ``OSError`` for a locale in which file names are ASCII.

    Python uses UTF-8 in such a locale unless the environment forbids it. Then names of images and
    classes could not be written.
    """
    if sys.getfilesystemencoding() == 'ascii':
        raise OSError(
            'names of files are ASCII in this locale: unset PYTHONUTF8, or set PYTHONUTF8=1 (got'
            f' {os.environ.get("PYTHONUTF8")!r})'
        )


def name_user() -> None:
    """Use the number as the user's name if there is none, as with ``docker run --user``."""
    try:
        getpass.getuser()
    except (KeyError, OSError):  # before Python 3.13, from it on
        os.environ['USER'] = f'user{os.getuid()}'


def find_home() -> None:
    """If the user has no home, warn and provide one until this process ends."""
    if os.path.isabs(os.path.expanduser('~')):
        return
    os.environ['HOME'] = _temporary_folder()
    print('warning: HOME is not set, so that downloads are not kept', file=sys.stderr)


def find_cache() -> None:
    """If the user's cache is not writable, provide a folder for numba until this process ends.

    The toolboxes import numba through imgaug, which fails without a cache. The folder is new each
    time, because code is loaded from it.
    """
    cache = os.environ.get('XDG_CACHE_HOME') or os.path.expanduser('~/.cache')
    if not os.environ.get('NUMBA_CACHE_DIR') and not _can_be_made(cache):
        os.environ['NUMBA_CACHE_DIR'] = _temporary_folder()


def _can_be_made(folder: str) -> bool:
    """``True`` if a folder can be written or created."""
    folder = os.path.abspath(folder)
    while not os.path.exists(folder):
        folder = os.path.dirname(folder)
    return os.path.isdir(folder) and os.access(folder, os.W_OK | os.X_OK)


def _temporary_folder() -> str:
    """Create a folder that is deleted when this process ends, but not when a worker ends."""
    folder, owner = tempfile.mkdtemp(prefix='cpvt-'), os.getpid()

    def remove() -> None:
        if os.getpid() == owner:
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return folder
