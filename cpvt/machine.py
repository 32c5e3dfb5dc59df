"""What a machine or container may lack: a user's name, a home, a locale that names files."""

import atexit
import getpass
import os
import shutil
import sys
import tempfile


def prepare() -> None:
    """Make up for what torch and the toolboxes need when they are imported.

    Raises:
        OSError: The locale cannot name files.
    """
    check_encoding()
    name_user()
    find_home()
    find_cache()


def check_encoding() -> None:
    """Refuse a locale in which names of files are ASCII.

    Python takes UTF-8 in such a locale, unless the environment forbids it. Names of images and
    classes would have to be read as bytes, and could not be written.
    """
    if sys.getfilesystemencoding() == 'ascii':
        raise OSError(
            'names of files are ASCII in this locale: unset PYTHONUTF8, or set PYTHONUTF8=1 (got'
            f' {os.environ.get("PYTHONUTF8")!r})'
        )


def name_user() -> None:
    """Name the user by the number if the system has no name, as with ``docker run --user``."""
    try:
        getpass.getuser()
    except (KeyError, OSError):  # before Python 3.13, from it on
        os.environ['USER'] = f'user{os.getuid()}'


def find_home() -> None:
    """Give the user a home until this process ends, if the system has none; with a warning."""
    if os.path.isabs(os.path.expanduser('~')):
        return
    os.environ['HOME'] = _temporary_folder()
    print('warning: HOME is not set, so that downloads are not kept', file=sys.stderr)


def find_cache() -> None:
    """Give numba a folder until this process ends, if the user's cache cannot be written.

    The toolboxes import numba by imgaug, which fails without a cache. The folder is new each time,
    because code is loaded from it.
    """
    cache = os.environ.get('XDG_CACHE_HOME') or os.path.expanduser('~/.cache')
    if not os.environ.get('NUMBA_CACHE_DIR') and not _can_be_made(cache):
        os.environ['NUMBA_CACHE_DIR'] = _temporary_folder()


def _can_be_made(folder: str) -> bool:
    """True if a folder can be written, or made."""
    folder = os.path.abspath(folder)
    while not os.path.exists(folder):
        folder = os.path.dirname(folder)
    return os.path.isdir(folder) and os.access(folder, os.W_OK | os.X_OK)


def _temporary_folder() -> str:
    """A new folder that is deleted when this process ends, not when a worker of it does."""
    folder, owner = tempfile.mkdtemp(prefix='cpvt-'), os.getpid()

    def remove() -> None:
        if os.getpid() == owner:
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return folder
