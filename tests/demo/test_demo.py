"""The demo: a run with little data and (slow) an interruption, and the whole demo with its
commands.
"""

import json
import shlex
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from PIL import Image

import demo
from cpvt import export, infer, train

pytest.importorskip('mmdet')
pytest.importorskip('mmseg')

PARSERS = {'infer.py': infer.make_parser, 'export.py': export.make_parser}


@pytest.fixture
def little(tmp_path):
    """Options of a demo of few and small scenes."""
    # The demo sets torch's threads, on which the rounding of later tests depends.
    before, size = torch.get_num_threads(), demo.TestSize
    yield dict(
        work_dir=tmp_path / 'work',
        data_root=tmp_path / 'data',
        sizes=(size(128, 128, 2, 4), size(75, 50, 2, 2)),
        train_scenes=8,
        iterations=1,
        seed=3,
    )
    torch.set_num_threads(before)


class Here:
    """In place of a training's process: ``tools/train.py`` in this one, without importing the
    toolboxes again.
    """

    def __init__(self, command, **options):
        train.main(command[2:])

    def poll(self):
        return 0


@pytest.mark.full
def test_demo_with_little_data(little, tmp_path, monkeypatch):
    monkeypatch.setattr(demo, 'subprocess', SimpleNamespace(Popen=Here))
    monkeypatch.setattr(
        'yapf.yapflib.yapf_api.FormatCode', lambda text, **options: (text, False)
    )  # seconds each
    results = demo.run(**little)
    assert [(row['width'], row['height']) for row in results['sizes']] == [(128, 128), (75, 50)]
    missed = ('AP50 at the training size is ', 'mIoU at the training size is ')
    for found, text in zip(results['missed'], missed, strict=True):
        assert found.startswith(text)
    assert json.loads((tmp_path / 'work/results.json').read_text()) == results
    assert Image.open(tmp_path / 'work/demo.png').width > 1000


def test_a_folder_with_other_files_is_refused(little, tmp_path):
    """A demo deletes a training of other settings; it must be one of its own."""
    own = tmp_path / 'work/detector/notes.txt'
    own.parent.mkdir(parents=True)
    own.write_text('of the user')
    with pytest.raises(FileExistsError, match=r"--work-dir: '.*work' has files and no demo.log"):
        demo.run(**little)
    assert [*own.parent.iterdir()] == [own]


def test_the_tools_take_the_printed_commands(little, monkeypatch):
    monkeypatch.setattr(demo, 'newest_checkpoint', lambda folder: folder / 'iter_1.pth')
    for command in demo.next_commands(little['work_dir'], little['data_root']):
        _, tool, *words = shlex.split(command)
        parser = PARSERS[Path(tool).name]()
        parser.checks.clear()  # no file is there
        parser.parse_args(words)  # SystemExit: an option that is none


@pytest.mark.slow
def test_demo_reaches_its_targets_and_its_commands_work(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folders = dict(work_dir=tmp_path / 'work', data_root=tmp_path / 'data')
    assert demo.run(**folders)['missed'] == []
    commands = demo.next_commands(**folders)
    for command in commands:
        subprocess.run(shlex.split(command), check=True)
    assert len(commands) == 3
    assert len(list((tmp_path / 'work').glob('*/vis/*'))) == 2 * demo.SIZES[-1].scenes
    assert (tmp_path / 'work/detector.onnx').is_file()
