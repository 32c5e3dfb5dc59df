"""Parts that all command lines share."""

import argparse
import re
import sys
from pathlib import Path

import pytest
from mmengine.logging import MMLogger
from mmengine.registry import Registry
from torch.nn import Linear

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


def raise_(error):
    raise error


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
        (lambda: raise_(UsageError('--size: too large')), '--size: too large'),
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


@pytest.mark.parametrize(
    'mistake', [dict(type='Huge'), dict(type='Linear', in_feature=3), dict(type='Linear')]
)
def test_a_mistake_in_a_config_has_mmengines_message_and_traceback(mistake):
    registry = Registry('backbones')
    registry.register_module(module=Linear)
    with pytest.raises((KeyError, TypeError), match='Huge is not in|in_feature|missing'):
        run(lambda: registry.build(mistake))


def test_interruption_is_one_line(capsys):
    with pytest.raises(SystemExit) as stop:
        run(lambda: raise_(KeyboardInterrupt()), interrupted='the same command resumes')
    assert stop.value.code == 130
    assert capsys.readouterr().err == 'the same command resumes\n'


def test_a_table_in_a_narrow_terminal_loses_no_letter(capsys, monkeypatch):
    monkeypatch.setattr(sys.stdout, 'isatty', lambda: True)
    monkeypatch.setenv('COLUMNS', '12')
    monkeypatch.setenv('TERM', 'xterm')
    cli.print_table([{'multiply-adds': 'abcdefghijklmnopq'}])
    printed = re.sub(r'\x1b\[[\d;]*m', '', capsys.readouterr().out).splitlines()
    assert {len(line) for line in printed} == {12}
    assert ''.join(re.findall(r'[\w-]', '\n'.join(printed))) == 'multiply-addsabcdefghijklmnopq'
