"""A config whose images get another mean or deviation than its weights want: one line says it."""

import json
import re

import pytest
import torch
from tiny import only
from tiny_configs import TASKS, lively_model, parsed, save

from cpvt_backbones import CPVT
from cpvt_backbones.checkpoints import find_normalisation
from cpvt_backbones.toolboxes import read_config

SAYS = 'images get mean'
HALF = [127.5] * 3


def lines(capsys):
    printed = capsys.readouterr()
    return [line for line in (printed.out + printed.err).splitlines() if SAYS in line]


@pytest.fixture
def folder(tmp_path):
    """Function that saves a classifier's backbone as a folder of transformers names its values."""

    def write(cfg, mean):
        arguments = {key: value for key, value in cfg.model.backbone.items() if key != 'type'}
        path = tmp_path / f'weights_{mean}'
        CPVT(**arguments).save_pretrained(path)
        values = dict(image_mean=[mean / 255] * 3, image_std=[0.5] * 3)
        (path / 'preprocessor_config.json').write_text(json.dumps(values))
        return path

    return write


@pytest.mark.parametrize('named', only(of=['short', 'long']))
def test_a_training_says_it_once(named, folder, tmp_path, call, capsys):
    pytest.importorskip('mmpretrain')
    config, options = TASKS['mmpretrain'](None, tmp_path)
    cfg = read_config(config)
    for mean, expected in ((100.0, 1), (127.5, 0)):
        path = folder(cfg, mean)
        init = f'model.backbone.init_cfg={path}'
        if named == 'long':
            init = (
                f'model.backbone.init_cfg.type=Pretrained model.backbone.init_cfg.checkpoint={path}'
            )
        work_dir = tmp_path / f'runs_{mean}'
        call('train', config, '--work-dir', work_dir, '--cfg-options', *options, *init.split())
        said = lines(capsys)
        assert len(said) == expected, said
        if said:
            assert f'[127.5, 127.5, 127.5] of RGB, but the weights {str(path)!r}' in said[0]
            assert 'mean [100, 100, 100]' in said[0]


@pytest.mark.parametrize('scope', only(of=TASKS))
def test_a_test_and_a_prediction_say_it(scope, scenes, tmp_path, call, capsys):
    """The weights are of a training whose config had other values than this one."""
    pytest.importorskip(scope)
    config, options = TASKS[scope](scenes, tmp_path)
    cfg = read_config(config, cfg_options=parsed(options))
    file = tmp_path / 'own.pth'
    save(lively_model(config, options), file, meta=dict(cfg=cfg.pretty_text))
    place = 'data_preprocessor' if scope == 'mmpretrain' else 'model.data_preprocessor'
    other = [f'{place}.mean=[1.0,2.0,3.0]']
    image = next(tmp_path.rglob('*.png'), None) or next(scenes.rglob('*.png'), None)
    image = image or next(scenes.rglob('*.jpg'))
    for more, expected in (([], 0), (other, 1)):
        call('test', config, file, '--cfg-options', *options, *more)
        assert len(lines(capsys)) == expected
        where = tmp_path / f'out_{expected}'
        call('infer', config, file, image, '--out-dir', where, '--cfg-options', *options, *more)
        said = lines(capsys)
        assert len(said) == expected, said
        assert all('mean [1, 2, 3]' in line and 'config of its training' in line for line in said)


def test_another_order_of_channels_is_said(scenes, tmp_path, call, capsys):
    pytest.importorskip('mmseg')
    config, options = TASKS['mmseg'](scenes, tmp_path)
    file = tmp_path / 'own.pth'
    cfg = read_config(config, cfg_options=parsed(options))
    save(lively_model(config, options), file, meta=dict(cfg=cfg.pretty_text))
    more = ['model.data_preprocessor.bgr_to_rgb=False']
    call('test', config, file, '--cfg-options', *options, *more)
    (said,) = lines(capsys)
    assert 'of BGR, but the weights' in said and 'of RGB (the config' in said


@pytest.mark.parametrize('form', ['folders', 'coco', 'masks'])
@pytest.mark.parametrize(
    ('weights', 'mean', 'std'),
    [
        ('timm://vit_small_patch16_224.augreg_in21k', HALF, HALF),
        ('timm://vit_base_patch14_reg1_tipsv2.webli', [0.0] * 3, [255.0] * 3),
        (
            'timm://vit_base_patch16_clip_quickgelu_224.openai',
            [122.7709, 116.746, 104.0937],
            [68.5005, 66.6322, 70.3232],
        ),
    ],
)
def test_make_config_writes_them(form, weights, mean, std, own_data, call, capsys, tmp_path):
    pytest.importorskip('timm')
    call('make_config', *own_data(form), '--weights', weights, '--out', 'c.py')
    printed = capsys.readouterr().out
    assert len([line for line in printed.splitlines() if line.startswith(SAYS)]) == 1
    cfg = read_config('c.py')
    preprocessor = cfg.model.get('data_preprocessor') or cfg.data_preprocessor
    assert preprocessor.mean == pytest.approx(mean, abs=1e-3)
    assert preprocessor.std == pytest.approx(std, abs=1e-3)
    assert preprocessor.get('bgr_to_rgb', preprocessor.get('to_rgb'))


def test_make_config_asks_for_what_is_not_known(own_data, call, capsys, tmp_path):
    pytest.importorskip('mmpretrain')
    torch.save(CPVT(arch='tiny').state_dict(), tmp_path / 'own.pth')
    call('make_config', *own_data('folders'), '--weights', 'own.pth', '--out', 'c.py')
    assert "mean and deviation of the weights' images are not known" in capsys.readouterr().out
    assert read_config('c.py').data_preprocessor.mean == [123.675, 116.28, 103.53]


@pytest.mark.full
def test_make_config_goes_on_with_those_of_a_training(own_data, call, capsys, tmp_path):
    """The second training of the same weights gets the values of the first."""
    pytest.importorskip('mmpretrain')
    data = own_data('folders')
    name = 'timm://vit_small_patch16_224.augreg_in21k'
    call('make_config', *data, '--weights', name, '--out', 'first.py')
    cfg = read_config('first.py')
    from cpvt_backbones.analysis.complexity import build_model

    state = build_model(cfg).state_dict()
    torch.save(dict(state_dict=state, meta=dict(cfg=cfg.pretty_text)), tmp_path / 'own.pth')
    call('make_config', *data, '--weights', 'own.pth', '--out', 'second.py')
    preprocessor = read_config('second.py').data_preprocessor
    assert (preprocessor.mean, preprocessor.std) == (HALF, HALF)


@pytest.mark.full
def test_an_exported_file_carries_them(own_data, call, tmp_path):
    pytest.importorskip('onnxruntime')
    pytest.importorskip('onnxscript')
    from cpvt_backbones.export import ExportedModel

    config, options = TASKS['mmpretrain'](None, tmp_path)
    file = save(lively_model(config, options), tmp_path / 'own.pth')
    small = ['--verify-sizes', '32x40', '--verify-batches', '1']
    for part in ('model', 'backbone'):
        out = tmp_path / f'{part}.onnx'
        call('export', config, file, '--part', part, '--out', out, *small)
        metadata = ExportedModel(out).metadata
        assert (metadata['mean'], metadata['std']) == (HALF, HALF), part
        assert metadata['flip_channels']


@pytest.mark.parametrize('tool', ['publish_checkpoint', 'convert_checkpoint'])
def test_published_and_converted_files_carry_them(tool, tmp_path, call, capsys):
    pytest.importorskip('mmpretrain')
    config, options = TASKS['mmpretrain'](None, tmp_path)
    cfg = read_config(config, cfg_options=parsed(options))
    file = tmp_path / 'own.pth'
    save(lively_model(config, options), file, meta=dict(cfg=cfg.pretty_text))
    out = tmp_path / 'out/new.safetensors'
    out.parent.mkdir()
    more = ['--config', config] if tool == 'convert_checkpoint' else []
    call(tool, file, out, *more)
    (written,) = out.parent.iterdir()
    found = find_normalisation(written)
    assert re.fullmatch('its metadata', found.source)
    assert (list(found.mean), list(found.std), found.rgb) == (HALF, HALF, True)
