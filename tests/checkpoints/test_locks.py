"""Locks of folders that one process writes to."""

import errno
import fcntl
import os

import pytest
from filelock import Timeout

from cpvt_backbones.checkpoints import lock_file


@pytest.mark.parametrize('number', [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_gives_a_warning_and_no_lock(number, tmp_path, monkeypatch):
    """No file is a lock: one that a process leaves when its machine fails would refuse others."""

    def refuse(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, 'flock', refuse)
    said: list[str] = []
    for _ in range(2):
        assert lock_file(tmp_path / '.lock', warn=said.append) is None
    assert len(said) == 2
    for line in said:
        assert str(tmp_path) in line
        assert os.strerror(number) in line
        assert 'let no other process write to it' in line
    assert [path.name for path in tmp_path.iterdir()] in ([], ['.lock'])


def test_a_lock_refuses_others_until_it_is_released(tmp_path):
    lock = lock_file(tmp_path / '.lock', warn=pytest.fail)
    with pytest.raises(Timeout):
        lock_file(tmp_path / '.lock', warn=pytest.fail)
    lock.release()
    lock_file(tmp_path / '.lock', warn=pytest.fail).release()
