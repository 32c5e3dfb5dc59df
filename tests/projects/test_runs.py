"""Folder of runs: shared between processes, bound to its plan, every result with its commit."""

import json
import subprocess
from typing import NamedTuple

import pytest
from filelock import FileLock
from positional_encoding.runs import RunFolder, current_commit, read_records, write_json

PLAN = dict(sizes=[1, 2])


class Run(NamedTuple):
    seed: int

    @property
    def name(self):
        return f'run_{self.seed}'


class Folder(RunFolder):
    """Three runs that train nothing."""

    def pending(self):
        return [run for run in map(Run, range(3)) if self.record(run) is None], 0

    def _train(self, run):
        record = dict(run=run._asdict(), config='width=8')
        write_json(self.folder / run.name / 'record.json', record)
        return record


def test_a_run_of_another_process_is_left_to_it(tmp_path):
    runs, trained = Folder(tmp_path, PLAN), []

    def done(run, record):
        trained.append(run.seed)
        if run.seed == 2:
            write_json(tmp_path / 'run_0/record.json', {})  # the other process ends too

    with FileLock(tmp_path / '.run_0.lock'):
        runs.work(done=done, patience=0.01)
    assert trained == [1, 2]
    assert runs.left() == 0


def test_a_folder_keeps_its_plan(tmp_path):
    assert (
        Folder(tmp_path, PLAN).plan
        == Folder(tmp_path, PLAN).plan
        == Folder(tmp_path, None).plan
        == PLAN
    )
    with pytest.raises(
        ValueError, match=r'was begun with .*\[1, 2\].* got .*\[1\].* use another folder'
    ):
        Folder(tmp_path, dict(sizes=[1]))
    with pytest.raises(FileNotFoundError, match='no study was begun in .*elsewhere'):
        Folder(tmp_path / 'elsewhere', None)


def test_seeds_must_share_their_config(tmp_path):
    Folder(tmp_path, PLAN).work()
    assert len(read_records(tmp_path)) == 3
    file = tmp_path / 'run_1/record.json'
    file.write_text(json.dumps({**json.loads(file.read_text()), 'config': 'width=9'}))
    with pytest.raises(ValueError, match='seeds 0 and 1 of .* were trained with different configs'):
        read_records(tmp_path)


def test_the_commit_marks_changed_files_anywhere_in_the_repository(tmp_path):
    def git(*arguments):
        subprocess.run(
            ['git', '-c', 'user.name=a', '-c', 'user.email=a', *arguments], cwd=tmp_path, check=True
        )

    (tmp_path / 'inner').mkdir()
    (tmp_path / 'outer.py').write_text('1')
    assert current_commit(tmp_path) == ''
    git('init', '-q')
    git('add', '.')
    git('commit', '-qm', 'one')
    clean = current_commit(tmp_path / 'inner')
    assert len(clean) == 40
    (tmp_path / 'outer.py').write_text('2')
    assert current_commit(tmp_path / 'inner') == f'{clean}+'
