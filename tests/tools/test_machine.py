"""Commands on machines that lack a user's name, a home that can be written, or UTF-8."""

import getpass
import os
import pwd
import subprocess
import sys
from ast import literal_eval
from pathlib import Path

import pytest
from tiny_configs import ROOT
from torch._inductor.runtime.cache_dir_utils import default_cache_dir

from cpvt.command_line import prepare


@pytest.fixture(autouse=True)
def _environment(monkeypatch):
    """Each test changes a copy of the environment."""
    monkeypatch.setattr(os, 'environ', os.environ.copy())
    for name in ('LOGNAME', 'USER', 'LNAME', 'USERNAME', 'NUMBA_CACHE_DIR', 'XDG_CACHE_HOME'):
        os.environ.pop(name, None)


@pytest.mark.parametrize('error', [KeyError, OSError])
def test_a_user_without_a_name_has_a_cache_of_torch(error, monkeypatch):
    """As in ``docker run --user 12345``."""

    def unknown(number):
        raise error(f'uid not found: {number}')

    monkeypatch.setattr(pwd, 'getpwuid', unknown)
    with pytest.raises(error):
        default_cache_dir()
    prepare()
    assert f'user{os.getuid()}' in default_cache_dir()


def test_a_user_with_a_name_keeps_it():
    os.environ['USER'] = 'somebody'
    prepare()
    assert getpass.getuser() == os.environ['USER'] == 'somebody'


def after(what, **environment):
    """The value of an expression in a new process that has prepared itself as a command does."""
    code = f'import os; from cpvt.command_line import prepare; prepare(); print(repr({what}))'
    done = subprocess.run(
        [sys.executable, '-c', code],
        env={**os.environ, 'PYTHONPATH': str(ROOT), **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return literal_eval(done.stdout), done.stderr


def test_a_home_that_cannot_be_written_is_replaced_for_numba():
    """By a folder that is writable, and gone when the command has ended."""
    what = "(os.environ['NUMBA_CACHE_DIR'], os.access(os.environ['NUMBA_CACHE_DIR'], os.W_OK))"
    (folder, writable), _ = after(what, HOME='/dev/null')
    assert writable and not Path(folder).exists()


def test_a_cache_that_can_be_written_is_left_to_numba(tmp_path):
    what = "os.environ.get('NUMBA_CACHE_DIR')"
    new = str(tmp_path / 'new/cache')
    assert after(what, HOME=str(tmp_path)) == (None, '')
    assert after(what, HOME='/dev/null', XDG_CACHE_HOME=new) == (None, '')
    assert after(what, HOME='/dev/null', NUMBA_CACHE_DIR='mine') == ('mine', '')
    assert not (tmp_path / 'new').exists()


def test_a_user_without_a_home_gets_one_with_a_warning(tmp_path):
    """``~`` stays in the paths of such a user, as it does here."""
    what = "(os.path.expanduser('~'), os.access(os.path.expanduser('~'), os.W_OK))"
    (home, writable), said = after(what, HOME='~')
    assert writable and os.path.isabs(home) and not Path(home).exists()
    assert said == 'warning: HOME is not set, so that downloads are not kept\n'
    assert after(what, HOME=str(tmp_path)) == ((str(tmp_path), True), '')


def test_a_locale_without_utf8_names_the_variable():
    ascii_names = dict(LC_ALL='C', PYTHONUTF8='0', PYTHONCOERCECLOCALE='0')
    command = [sys.executable, '-m', 'cpvt', 'infer', '--help']
    for more, code in ((ascii_names, 2), ({**ascii_names, 'PYTHONUTF8': '1'}, 0)):
        done = subprocess.run(
            command,
            env={**os.environ, 'PYTHONPATH': str(ROOT), **more},
            capture_output=True,
            text=True,
        )
        assert done.returncode == code, done.stderr
        line = 'error: names of files are ASCII in this locale: unset PYTHONUTF8'
        assert done.stderr.startswith(line) == (code == 2)
        assert len(done.stderr.splitlines()) <= 1
