"""The commit of a result is that of all the code, changes included."""

import subprocess

from cpvt_backbones.analysis.provenance import commit


def test_a_commit_tells_of_changed_files_anywhere(tmp_path):
    def git(*arguments):
        subprocess.run(['git', '-c', 'user.name=a', '-c', 'user.email=a', *arguments], cwd=tmp_path, check=True)

    (tmp_path / 'inner').mkdir()
    (tmp_path / 'outer.py').write_text('1')
    git('init', '-q')
    git('add', '.')
    git('commit', '-qm', 'one')
    clean = commit(tmp_path / 'inner')
    assert len(clean) == 40
    (tmp_path / 'outer.py').write_text('2')
    assert commit(tmp_path / 'inner') == f'{clean}+'
