"""Every command line of the repository: help, and one line for a file that is not there."""

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_configs import ROOT

from cpvt.__main__ import COMMANDS, contents, main

FOLDERS = ('tools', 'benchmarks', 'projects', 'demo')
SCRIPTS = {
    str(path.relative_to(ROOT)): path
    for folder in FOLDERS
    for path in sorted((ROOT / folder).rglob('*.py'))
    if "__name__ == '__main__'" in path.read_text()
}


def documented(script):
    """The file whose docstring is the description: of a command, its module in cpvt."""
    command = ROOT / 'cpvt' / Path(script).name
    return command if command.is_file() and script.startswith('tools/') else SCRIPTS[script]


# Arguments with one thing wrong for each, and a word of the answer.
NO_CONFIG = "there is no config file 'none.py'"
NO_CHECKPOINT = "checkpoint: there is no file or folder 'none.pth'"
SUFFIXES = 'destination must end in one of .pth, .pt, .safetensors'
SHIPPED = (
    'a-b none.py none.pth --commit 1 --about a --data b --terms c --purpose d --not-for e'
    ' --picture f'
)
MISTAKES = {
    'benchmarks/attention.py': ('--out none/a.csv', "out: 'none' is not a folder"),
    'benchmarks/detector_price.py': ('--out none/a.csv', "out: 'none' is not a folder"),
    'benchmarks/exported.py': ('--out none/a.csv', "out: 'none' is not a folder"),
    'benchmarks/eomt_speed.py': (
        '--authors none --out a.csv',
        "authors: 'none' is not a folder",
    ),
    'benchmarks/ignored_objects.py': ('--out none/a.csv', "out: 'none' is not a folder"),
    'benchmarks/matrix.py': ('3.11', 'PYTHON:TORCH:TORCHVISION must be three versions'),
    'benchmarks/parity.py': ('none', 'PEER must be one of'),
    'benchmarks/precision.py': ('--data none --out a.csv', 'there are no images in'),
    'benchmarks/pipeline.py': ('--images none --count 1', 'none'),
    'benchmarks/public_weights.py': ('--docs none.md', 'none.md'),
    'benchmarks/published.py': ('none', "NAME: no config of configs/published has 'none'"),
    'benchmarks/published_logits.py': ('none', "NAME: 'none' is not a published model"),
    'benchmarks/published_models.py': ('--out none/a.json', "out: 'none' is not a folder"),
    'benchmarks/published_speed.py': ('pvt_tyni-imagenet', "did you mean 'pvt_tiny-imagenet'"),
    'benchmarks/speed.py': ('--suite cpu --docs none.md', 'none.md'),
    'benchmarks/tile_agreement.py': ('none.py none.pth {image} --tiles 32:8', NO_CONFIG),
    'benchmarks/relative_positions.py': ('--out none/a.csv', "out: 'none' is not a folder"),
    'demo/app.py': ('none.py none.pth', NO_CONFIG),
    'demo/demo.py': ('--work-dir {image}', 'File exists'),
    'demo/digit_scenes.py': ('--root {image}', 'Not a directory'),
    'demo/make_masks.py': ('{image}', 'Not a directory'),
    'projects/shipped_weights/make_bccd.py': ('none made', "no .xml in the folder 'none'"),
    'projects/shipped_weights/make_imagenette.py': ('none made', 'no images in none/train/<class>'),
    'projects/shipped_weights/make_teacher.py': ('out.h5', SUFFIXES),
    'projects/shipped_weights/ship_weights.py': (SHIPPED, 'config must be in'),
    'tools/convert_checkpoint.py': ('none.pth out.pth --type CPVT', NO_CHECKPOINT),
    'tools/export.py': ('none.py none.pth --out model.onnx', NO_CONFIG),
    'tools/get_flops.py': ('none.py', NO_CONFIG),
    'tools/infer.py': ('none.py none.pth {image}', NO_CONFIG),
    'tools/make_config.py': ('folders none --out a.py', "there is no file or folder 'none'"),
    'tools/publish_checkpoint.py': ('none.pth out.pth', NO_CHECKPOINT),
    'tools/resolution_sweep.py': ('--models a=none.py:none.pth', NO_CONFIG),
    'tools/test.py': ('none.py none.pth', NO_CONFIG),
    'tools/train.py': ('none.py', NO_CONFIG),
}


@pytest.fixture
def start(monkeypatch, tmp_path, capsys):
    """Start a script as ``python`` does, in an empty folder.

    Returns exit code, stdout and stderr.
    """
    monkeypatch.chdir(tmp_path)

    def start(script, *words):
        path = SCRIPTS[script]
        monkeypatch.syspath_prepend(str(path.parent))
        monkeypatch.setattr(sys, 'argv', [str(path), *words])
        with pytest.raises(SystemExit) as stop:
            runpy.run_path(str(path), run_name='__main__')
        return stop.value.code, *capsys.readouterr()

    return start


@pytest.mark.parametrize('columns', [40, 66, 80, 132])
@pytest.mark.parametrize('script', SCRIPTS)
def test_help(script, columns, start, monkeypatch):
    monkeypatch.setenv('COLUMNS', str(columns))
    code, out, err = start(script, '--help')
    assert (code, err) == (0, '')
    first_line = documented(script).read_text().split('"""')[1].splitlines()[0]
    assert out.startswith(f'usage: {SCRIPTS[script].name}')
    assert first_line in ' '.join(out.split())


def test_each_script_that_takes_an_argument_has_a_mistake():
    assert SCRIPTS.keys() - {'demo/run_tour.py'} == MISTAKES.keys()


@pytest.mark.parametrize('script', MISTAKES)
def test_a_mistake_ends_in_one_line(script, start, tmp_path):
    words, message = MISTAKES[script]
    (tmp_path / 'image.jpg').write_bytes((ROOT / 'docs/figures/vis.jpg').read_bytes())
    code, _, err = start(script, *words.format(image='image.jpg').split())
    assert code == 2
    assert message in err and err.startswith('error: ') and err.count('\n') == 1
    assert [path.name for path in tmp_path.iterdir()] == ['image.jpg']


def test_each_command_is_a_script_too():
    assert {name.replace('-', '_') for name in COMMANDS} <= {
        Path(script).stem for script in SCRIPTS if script.startswith('tools/')
    }


@pytest.mark.parametrize('words', [[], ['-h'], ['--help'], ['help']])
def test_help_of_the_console_command_lists_the_commands(words, capsys):
    main(words)
    printed = capsys.readouterr().out
    assert printed == contents() + '\n' and max(map(len, printed.splitlines())) <= 80
    assert [*re.findall(r'^  ([a-z-]+) ', printed, re.MULTILINE)] == [*COMMANDS]


@pytest.mark.parametrize(
    ('name', 'advice'),
    [
        ('make_config', "did you mean 'make-config'?"),
        ('exprot', "did you mean 'export'?"),
        ('photo.jpg', 'cpvt --help lists them'),
    ],
)
def test_a_mistyped_command_gets_a_suggestion(name, advice, capsys):
    with pytest.raises(SystemExit) as stop:
        main([name, '--help'])
    assert stop.value.code == 2
    assert capsys.readouterr().err == f'error: there is no command {name!r}; {advice}\n'


def test_the_console_command_imports_after_the_arguments_and_names_itself(tmp_path):
    """``python -m cpvt``, which the program ``cpvt`` calls."""
    code = """
import runpy, sys
sys.argv[1:] = ['train', '--help']
try:
    runpy.run_module('cpvt', run_name='__main__', alter_sys=True)
except SystemExit:
    print('modules:', *sorted({'torch', 'mmengine', 'cpvt_backbones'} & set(sys.modules)))
"""
    environment = {**os.environ, 'PYTHONPATH': str(ROOT)}
    shown = subprocess.check_output([sys.executable, '-c', code], env=environment, text=True)
    assert shown.startswith('usage: cpvt train [options] config') and shown.endswith('modules:\n')
    command = [sys.executable, '-m', 'cpvt', 'train', 'none.py']
    refused = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=tmp_path)
    assert refused.returncode == 2
    assert refused.stderr == "error: there is no config file 'none.py'\n"  # nothing was loaded
