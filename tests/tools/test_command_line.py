"""Parts that all command lines share."""

import argparse
import inspect
import os
import platform
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from mmengine.logging import MMLogger
from mmengine.registry import Registry
from torch.nn import Linear, Module

import cpvt_backbones
from cpvt import command_line as cli
from cpvt.command_line import (
    Overrides,
    UsageError,
    make_parser,
    parse_model,
    parse_size,
    parse_values,
    run,
    split_model,
)
from cpvt_backbones import CPVT
from cpvt_backbones.checkpoints import CheckpointError
from cpvt_backbones.errors import InputError, InputTypeError
from cpvt_backbones.weights import find_shipped, shipped_weights

NAME = next(iter(shipped_weights()))


@pytest.fixture(autouse=True)
def _own_logger(monkeypatch):
    """The loggers of earlier tests write to streams that are closed."""
    monkeypatch.setattr(MMLogger, '_instance_dict', type(MMLogger._instance_dict)())


@pytest.mark.parametrize(
    ('error', 'shown'),
    [
        (InputError('out_dir: there is none', argument='out_dir'), '--out-dir: there is none'),
        (InputError('out_dir: there is none'), 'out_dir: there is none'),
        (InputError('score_thr must be 0', argument='score_thr'), '--score-thr must be 0'),
        (InputError('config: a fault', argument='config'), 'config: a fault'),  # without an option
        (InputError('depth must be 1', argument='depth'), 'depth must be 1'),
    ],
)
def test_an_error_names_the_option_of_its_argument(error, shown, capsys):
    parser = make_parser('A tool.')
    parser.add_argument('config')
    for option in ('--out-dir', '--score-thr'):
        parser.add_argument(option)
    with pytest.raises(SystemExit):
        run(lambda: raise_(error))
    assert capsys.readouterr().err == f'error: {shown}\n'


@pytest.mark.parametrize(('text', 'size'), [('224', (224, 224)), ('480x640', (480, 640))])
def test_a_size_is_height_by_width_or_a_side(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize(
    'text', ['', '0', '0x4', '4x', 'x4', '480X640', '1x2x3', '-4', '4.5', '480 640']
)
def test_other_sizes_are_refused(text):
    with pytest.raises(argparse.ArgumentTypeError, match='HEIGHTxWIDTH or SIDE in px is expected'):
        parse_size(text)


def test_a_model_is_config_and_checkpoint_or_a_name_or_an_exported_file():
    config = str(find_shipped(NAME).config_file)
    assert split_model(['c.py', 'x.pth', 'a.jpg', 'b.py'], images=True) == (
        'c.py',
        'x.pth',
        ['a.jpg', 'b.py'],
    )
    assert split_model([NAME, 'a.jpg'], images=True) == (config, NAME, ['a.jpg'])
    assert split_model(['c.py', NAME]) == ('c.py', NAME, [])
    assert split_model(['m.onnx'], exported=('.onnx',)) == (None, 'm.onnx', [])
    assert parse_model('a=c.py:x.pth') == ('a', 'c.py', 'x.pth')
    assert parse_model(NAME) == (NAME, config, NAME)
    assert parse_model(f'a={NAME}') == ('a', config, NAME)


@pytest.mark.parametrize(
    ('word', 'value'),
    [
        ('a=3', 3),
        ('a=0.5', 0.5),
        ('a=true', True),
        ('a=None', None),
        ('a=x=y', 'x=y'),
        ('a=my photos/größe 2', 'my photos/größe 2'),
        ('a=[1, (2, 3)]', [1, (2, 3)]),
        ('a=b,c', ['b', 'c']),
    ],
)
def test_values_of_options(word, value):
    parser = make_parser('Doc.')
    parser.add_argument('--cfg-options', nargs='+', action=Overrides)
    args = parser.parse_args(['--cfg-options', 'c=1', '--cfg-options', word])
    assert parse_values(args.cfg_options) == dict(c=1, a=value)


def test_options_without_a_value_or_with_open_brackets(capsys):
    parser = make_parser('Doc.')
    parser.add_argument('--cfg-options', nargs='+', action=Overrides)
    with pytest.raises(SystemExit):
        parser.parse_args(['--cfg-options', 'model.arch'])
    assert "--cfg-options: KEY=VALUE is expected, got 'model.arch'" in capsys.readouterr().err
    with pytest.raises(ValueError, match=r'--cfg-options: a=\[1,2'):
        parse_values(dict(a='[1,2'))


@pytest.mark.parametrize('text', ['1.5', '-0.1', 'nan', 'half'])
def test_a_wrong_argument_is_told_before_the_usage(text, capsys):
    parser = make_parser('Doc.')
    parser.add_argument('--share', type=cli.fraction)
    assert [parser.parse_args(['--share', one]).share for one in ('0', '0.25', '1')] == [0, 0.25, 1]
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        parser.parse_args(['--share', text])
    assert ended.value.code == 2
    first, second = capsys.readouterr().err.splitlines()
    assert first == f'error: argument --share: a number in [0, 1] is expected, got {text!r}'
    assert second.startswith('usage: ')


def test_choices_and_defaults_are_the_packages():
    """The parser repeats them, since importing the package takes seconds."""
    from cpvt_backbones import export, inference
    from cpvt_backbones.checkpoints import TARGETS
    from cpvt_backbones.engine import launch
    from cpvt_backbones.export import exported, formats, verification
    from cpvt_backbones.inference import predictors

    arguments = inspect.signature(inference.Inferencer).parameters
    for name in ('max_pixels', 'tile_size', 'overlap', 'read_limit'):
        assert getattr(cli, name.upper()) == arguments[name].default
    assert cli.AMP_DTYPES == launch.AMP_DTYPES
    assert cli.TARGETS == TARGETS
    assert cli.DTYPES == predictors.DTYPES
    assert cli.RUNTIMES == exported.RUNTIMES
    assert cli.EXPORTED_SUFFIXES == exported.EXPORTED_SUFFIXES
    assert [*cli.EXPORT_FORMATS] == [*formats.EXPORT_FORMATS]
    assert inspect.signature(export.export).parameters['opset'].default == cli.OPSET
    assert cli.VERIFIED_SIZES == verification.VERIFIED_SIZES
    assert cli.VERIFIED_BATCHES == verification.VERIFIED_BATCHES
    assert all(issubclass(getattr(cpvt_backbones, name), Module) for name in cli.BACKBONES)


@pytest.mark.parametrize(
    ('words', 'message'),
    [
        ([], "'' is not a model; names: docs/weights.md"),
        (['c.py'], "'c.py' is not a model; .* or give CONFIG.py CHECKPOINT$"),
        (['x.pth', 'c.py'], "'x.pth' is not a model"),
        (['m.onnx', 'a.jpg'], "'m.onnx' is not a model"),
        (['retinanet_r50_fpn_1x_coco', 'a.jpg'], "^'retinanet_r50_fpn_1x_coco' is not a model; "),
        (['c.py', 'x.pth'], "images: none are given after the model 'x.pth'"),
    ],
)
def test_without_a_model_or_images_the_error_says_so(words, message):
    with pytest.raises(ValueError, match=message):
        split_model(words, images=True)


@pytest.mark.parametrize('typo', [f'{NAME}s', NAME[:-1], NAME.rpartition('-')[2]])
def test_a_typo_in_a_shipped_name_is_corrected(typo):
    with pytest.raises(ValueError, match=f'did you mean {NAME!r}'):
        split_model([typo, 'a.jpg'], images=True)
    with pytest.raises(argparse.ArgumentTypeError, match=f'did you mean {NAME!r}'):
        parse_model(typo)


def test_words_after_a_model_are_refused():
    with pytest.raises(ValueError, match="only a model is accepted, got 'a.jpg' after it"):
        split_model(['c.py', 'x.pth', 'a.jpg'])


@pytest.mark.parametrize(
    'text', ['', 'a', 'a=', '=c.py:x.pth', 'a=c.py', 'a=c.py:', 'a=x.pth:c.py']
)
def test_other_named_models_are_refused(text):
    with pytest.raises(
        argparse.ArgumentTypeError, match='NAME=CONFIG:CHECKPOINT or shipped weights are expected'
    ):
        parse_model(text)


def build(**arguments):
    registry = Registry('backbones')
    registry.register_module(module=CPVT)
    registry.register_module(module=Linear)
    return registry.build(arguments)


def build_detector(head):
    registry = Registry('model')

    class Base:
        def __init__(self, num_classes=2): ...

    @registry.register_module()
    class Head(Base):
        def __init__(self, strides=4, **kwargs):
            super().__init__(**kwargs)

    @registry.register_module()
    class Broken:
        def __init__(self, num_clases):
            Base(num_clases=num_clases)

    @registry.register_module()
    class Detector:
        def __init__(self, bbox_head):
            registry.build(bbox_head)

    return registry.build(dict(type='Detector', bbox_head=head))


def raise_(error):
    raise error


def told_again(build):
    """Call ``build`` as mmengine's original registry does, which repeats an error."""
    source = """
def build_from_cfg(build):
    try:
        build()
    except Exception as error:
        raise type(error)(f'class `CPVT` in cpvt.py: {error}')
"""
    place = dict(__name__='mmengine.registry.build_functions')
    exec(source, place)
    place['build_from_cfg'](build)


@pytest.mark.parametrize(
    ('main', 'message'),
    [
        (lambda: raise_(InputError('size must be even,\n  got 3')), 'size must be even, got 3'),
        (lambda: raise_(InputTypeError('size must be a number')), 'size must be a number'),
        (lambda: raise_(CheckpointError('no weights')), 'no weights'),
        (
            lambda: open('none.csv'),
            f"error: 'none.csv': No such file or directory (the path starts from {Path.cwd()})\n",
        ),
        (lambda: open('/none/é 1.csv'), "error: '/none/é 1.csv': No such file or directory\n"),
        (lambda: raise_(FileNotFoundError('there is no file a')), 'there is no file a'),
        (lambda: __import__('no_such_package'), "No module named 'no_such_package'"),
        (lambda: raise_(ImportError('pip install it')), 'pip install it'),
        (lambda: CPVT(arch='huge'), 'arch must be one of'),
        (lambda: CPVT(arch='smal'), "got 'smal'; did you mean 'small'?"),
        (lambda: build(type='Huge'), 'error: Huge is not in the '),
        (lambda: build(type='PyramidCVPT'), "did you mean 'PyramidCPVT'?"),
        (lambda: build(type='CPVT', arch='huge'), 'arch must be one of'),
        (
            lambda: build(type='Linear', in_feature=3),
            "error: backbones: Linear has no argument 'in_feature'; did you mean 'in_features'?",
        ),
        (
            lambda: build_detector(dict(type='Head', num_clases=3)),
            "error: bbox_head: Head has no argument 'num_clases'; did you mean 'num_classes'?",
        ),
        (
            lambda: told_again(lambda: build_detector(dict(type='Head', stride=3))),
            "error: bbox_head: Head has no argument 'stride'; did you mean 'strides'?",
        ),
        (lambda: raise_(UsageError('--size: too large')), '--size: too large'),
        (lambda: told_again(lambda: CPVT(arch='huge')), 'arch must be one of'),
    ],
)
def test_a_users_mistake_ends_in_one_line(main, message, capsys, monkeypatch):
    with pytest.raises(SystemExit) as stop:
        run(main)
    assert stop.value.code == 2
    printed = capsys.readouterr().err
    assert printed.startswith('error: ') and printed.count('\n') == 1 and message in printed
    monkeypatch.setenv('CPVT_DEBUG', '1')
    with pytest.raises(SystemExit) as stop:
        run(main)
    assert stop.value.code == 2
    traced = capsys.readouterr().err
    assert traced.startswith('Traceback (most recent call last):') and traced.endswith(printed)


@pytest.mark.parametrize(
    ('statement', 'error'),
    [
        ("raise KeyError('key')", KeyError),
        ("'str' / 1", TypeError),
        ("int('x')", ValueError),
        ('a, b = [1]', ValueError),
        ('None.x', AttributeError),
        ("{}['key']", KeyError),
        ("raise ValueError('a' / 2)", TypeError),
        ('def f(*, a): pass\nf(b=1)', TypeError),
        ("raise RuntimeError('state')", RuntimeError),
        ('from cpvt_backbones.layers import Pge', ImportError),
        ('import cpvt_backbones.layer', ImportError),
        ("raise ValueError('state')", ValueError),
        # A bug in the answer to a mistake.
        ("try:\n    raise TypeError('mistake')\nexcept TypeError:\n    None + 1", TypeError),
    ],
)
@pytest.mark.parametrize('folder', [Path(cpvt_backbones.__file__).parent, Path(__file__).parent])
def test_a_bug_keeps_its_traceback(statement, error, folder):
    code = compile(statement, folder / 'module.py', 'exec')
    with pytest.raises(error):
        run(lambda: exec(code))


def test_a_bug_in_a_constructor_that_a_config_names_keeps_its_traceback():
    registry = Registry('backbones')
    registry.register_module(name='Broken', module=lambda: int('x'))
    with pytest.raises(ValueError, match='invalid literal'):
        run(lambda: registry.build(dict(type='Broken')))
    with pytest.raises(ValueError, match='class `CPVT`.*invalid literal'):
        run(lambda: told_again(lambda: int('x')))
    with pytest.raises(TypeError, match='num_clases'):
        run(lambda: build_detector(dict(type='Broken', num_clases=3)))


def test_interruption_is_one_line(capsys):
    with pytest.raises(SystemExit) as stop:
        run(lambda: raise_(KeyboardInterrupt()), interrupted='the same command resumes')
    assert stop.value.code == 130
    assert capsys.readouterr().err == 'the same command resumes\n'


@pytest.mark.skipif(platform.libc_ver()[0] != 'glibc', reason='a setting of glibc')
@pytest.mark.parametrize('settings', [{}, {'MALLOC_ARENA_MAX': '4'}])
def test_freed_memory_is_kept(settings):
    """Counted in page faults: 64 MB that are filled and freed four times have 16,000 pages each
    time.
    """
    script = """
    import resource
    from cpvt.command_line import keep_memory

    def faults():
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for size in [64_000_000] * 4:
            b'x' * size
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    print(faults(), keep_memory(), faults(), faults())
    """
    names = [name for name in os.environ if not name.startswith(('MALLOC_', 'GLIBC_'))]
    environment = {name: os.environ[name] for name in names}
    command = [sys.executable, '-c', textwrap.dedent(script)]
    place = dict(env={**environment, **settings}, cwd=Path(cli.__file__).parents[1])
    printed = subprocess.check_output(command, text=True, **place)
    before, kept, _, after = printed.split()
    assert kept == str(not settings)
    assert int(before) > 30_000 and (int(after) < 1000) == (kept == 'True')


def test_a_table_in_a_narrow_terminal_loses_no_letter(capsys, monkeypatch):
    monkeypatch.setattr(sys.stdout, 'isatty', lambda: True)
    monkeypatch.setenv('COLUMNS', '12')
    monkeypatch.setenv('TERM', 'xterm')
    cli.print_table([{'multiply-adds': 'abcdefghijklmnopq'}])
    printed = re.sub(r'\x1b\[[\d;]*m', '', capsys.readouterr().out).splitlines()
    assert {len(line) for line in printed} == {12}
    assert ''.join(re.findall(r'[\w-]', '\n'.join(printed))) == 'multiply-addsabcdefghijklmnopq'
