"""Mean and deviation of the images that weights were trained with, by every kind of source."""

import csv
import json
from pathlib import Path

import pytest
import torch
from hostile import refused
from mmengine.config import Config
from tiny import COLUMN, ONE_BLOCK, build, column, semantic_fpn

from cpvt_backbones import CPVT
from cpvt_backbones.checkpoints import (
    config_normalisation,
    find_normalisation,
    load_checkpoint,
    normalisation,
    normalisation_meta,
    warn_of_other_normalisation,
    write_checkpoint,
)
from cpvt_backbones.toolboxes import dicts_of
from cpvt_backbones.weights import named_models, published_weights

ROOT = Path(__file__).resolve().parents[2]
IMAGENET = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
CLIP = (122.7709, 116.746, 104.0937), (68.5005, 66.6322, 70.3232)
HALF = (127.5,) * 3, (127.5,) * 3
UNIT = (0.0,) * 3, (255.0,) * 3


def values(found):
    return found and (found.mean, found.std)


@pytest.mark.parametrize(
    ('name', 'expected'),
    [
        ('timm://deit_tiny_patch16_224.fb_in1k', IMAGENET),
        ('timm://vit_small_patch16_224.augreg_in21k', HALF),
        ('timm://vit_base_patch16_siglip_224.v2_webli', HALF),
        ('timm://vit_base_patch16_clip_quickgelu_224.openai', CLIP),
        ('timm://vit_base_patch14_reg1_tipsv2.webli', UNIT),
        ('timm://vit_base_patch16_224', HALF),  # of the tag that timm loads
        ('hf://timm/vit_small_patch16_224.augreg_in21k', HALF),
        ('https://x.org/deit_tiny_patch16_224-a1311bcf.pth', IMAGENET),
        ('https://x.org/vit_base_patch16_224.pth', None),  # of a tag that nobody knows
        ('https://x.org/epoch_12.pth', None),
        ('timm://no_such_model', None),
        ('segmenter_vit_small-ade20k', HALF),
        ('cpvt_tiny_gap-imagenette', IMAGENET),
        ('https://github.com/whai362/PVT/releases/download/v2/pvt_tiny.pth', IMAGENET),
    ],
)
def test_a_name_says_its_values_without_a_download(name, expected):
    pytest.importorskip('timm')
    found = find_normalisation(name)
    assert (found and found.rgb) == (expected and True)
    if expected is None:
        assert found is None
    else:
        for ours, theirs in zip(values(found), expected, strict=True):
            assert ours == pytest.approx(theirs, abs=1e-3)


def test_mmpretrain_says_its_values():
    pytest.importorskip('mmpretrain')
    found = find_normalisation('mmpretrain://vit-base-p16_32xb128-mae_in1k')
    assert (found.mean, found.std) == IMAGENET
    found = find_normalisation('mmpretrain://vit-base-p16_in21k-pre_3rdparty_in1k-384px')
    assert (found.mean, found.std) == HALF


@pytest.mark.full
def test_the_index_has_the_values_of_its_configs():
    for name, entry in named_models().items():
        cfg = Config.fromfile(entry.config_file, import_custom_modules=False)
        found = config_normalisation(cfg.model.get('data_preprocessor') or cfg.data_preprocessor)
        assert values(find_normalisation(name)) == values(found), name
        assert (tuple(entry.mean), tuple(entry.std)) == values(found), name
        assert found.rgb, name


@pytest.mark.full
def test_recipes_normalise_as_their_weights_want():
    """Recipes of this package; four publishers of mmseg's did not, see configs/published."""
    pytest.importorskip('timm')
    compared, others = 0, set()
    for file in sorted((ROOT / 'configs').rglob('*.py')):
        if '_base_' in file.parts:
            continue
        cfg = Config.fromfile(file, import_custom_modules=False)
        model = cfg.get('model') or {}
        settings = model.get('data_preprocessor') or cfg.get('data_preprocessor')
        inner = [part.get('init_cfg') for part in dicts_of(model.get('backbone') or {})]
        inner += [part.get('checkpoint') for part in dicts_of(model.get('backbone') or {})]
        for name in [cfg.load_from] if cfg.get('load_from') else inner:
            found = find_normalisation(name, download=False) if isinstance(name, str) else None
            if found is not None:
                compared += 1
                if not found.agrees(config_normalisation(settings)):
                    others.add(file.parent.name)
    assert compared > 50
    assert others == {'dpt', 'vit'}, others  # as published


def test_the_index_has_the_values_of_timm():
    pytest.importorskip('timm')
    checked = 0
    for name, entry in published_weights().items():
        if entry.address.startswith('timm://'):
            assert find_normalisation(name).agrees(find_normalisation(entry.address)), name
            checked += 1
    assert checked == 4


def test_the_table_of_weights_has_the_values():
    timm = pytest.importorskip('timm')
    rows = [*csv.DictReader((ROOT / 'docs/weights.csv').open())]
    other = 0
    for row in rows:
        shown = [tuple(map(float, row[key].split())) for key in ('mean', 'std')]
        assert shown[0] == pytest.approx(find_normalisation(row['name']).mean, abs=1e-3)
        if row['name'].startswith('timm://'):
            config = timm.models.get_pretrained_cfg(row['name'].removeprefix('timm://'))
            assert shown[0] == pytest.approx([255 * one for one in config.mean], abs=1e-3)
            assert shown[1] == pytest.approx([255 * one for one in config.std], abs=1e-3)
            other += tuple(config.mean) != (0.485, 0.456, 0.406)
    assert other >= 200


def write_json(folder, name, **content):
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(json.dumps(content))


@pytest.mark.parametrize(
    ('name', 'content', 'expected'),
    [
        ('preprocessor_config.json', dict(image_mean=[0.5] * 3, image_std=[0.5] * 3), HALF),
        ('preprocessor_config.json', dict(image_mean=0.5, image_std=0.5), HALF),
        (
            'preprocessor_config.json',
            dict(image_mean=[127.5] * 3, image_std=[127.5] * 3, do_rescale=False),
            HALF,
        ),
        (
            'preprocessor_config.json',
            dict(image_mean=[1.0] * 3, image_std=[1.0] * 3, rescale_factor=1 / 127.5),
            HALF,
        ),
        ('preprocessor_config.json', dict(do_normalize=False), UNIT),
        ('preprocessor_config.json', dict(size=224), None),
        (
            'processor_config.json',
            dict(image_processor=dict(image_mean=[0.5] * 3, image_std=[0.5] * 3)),
            HALF,
        ),
        (
            'config.json',
            dict(architecture='x', pretrained_cfg=dict(mean=[0.5] * 3, std=[0.5] * 3)),
            HALF,
        ),
        ('config.json', dict(architecture='x', mean=[0.5] * 3, std=[0.5] * 3), HALF),
        ('config.json', dict(model_type='vit'), None),
    ],
)
def test_a_folder_says_its_values(name, content, expected, tmp_path):
    write_json(tmp_path, name, **content)
    assert values(find_normalisation(tmp_path)) == expected


@pytest.mark.parametrize(
    ('config', 'expected'),
    [
        (dict(model_type='vit'), HALF),
        (dict(type='CPVT', arch='tiny'), HALF),  # of save_pretrained
        (dict(architecture='x', pretrained_cfg=dict(mean=[0.0] * 3, std=[1.0] * 3)), UNIT),
    ],
)
def test_a_repository_says_its_values(config, expected, tmp_path, monkeypatch):
    """Its files were put into the cache by hand."""
    pytest.importorskip('huggingface_hub')
    monkeypatch.setattr(torch.hub, 'get_dir', lambda: str(tmp_path))
    for name, content in {
        'config.json': config,
        'preprocessor_config.json': dict(image_mean=[0.5] * 3, image_std=[0.5] * 3),
    }.items():
        write_json(tmp_path / 'checkpoints', f'user--own--{name}', **content)
    assert values(find_normalisation('hf://user/own')) == expected
    assert find_normalisation('hf://user/own', download=False) is None


@pytest.mark.parametrize(
    'content',
    [
        dict(image_mean='0.5', image_std=[0.5] * 3),
        dict(image_mean=[0.5] * 3, image_std=[0.5, 0.0, 0.5]),
        dict(image_mean=[0.5] * 3, image_std=[0.5] * 2),
        dict(image_mean=[], image_std=[]),
        dict(image_mean=[0.5] * 3, image_std=[0.5] * 3, rescale_factor=0),
    ],
)
def test_a_damaged_file_is_named(content, tmp_path):
    write_json(tmp_path, 'preprocessor_config.json', **content)
    with pytest.raises(ValueError, match=r'preprocessor_config\.json: \w+ must be'):
        find_normalisation(tmp_path)


@pytest.mark.parametrize(
    'kind', ['ViTImageProcessor', 'CLIPImageProcessor', 'SiglipImageProcessor']
)
def test_a_folder_of_transformers_says_its_values(kind, tmp_path):
    transformers = pytest.importorskip('transformers')
    processor = getattr(transformers, kind)()
    processor.save_pretrained(tmp_path)
    image = torch.randint(0, 256, (3, 224, 224), dtype=torch.uint8)
    theirs = processor(image, do_resize=False, do_center_crop=False, return_tensors='pt')
    mean, std = (torch.tensor(one).view(3, 1, 1) for one in values(find_normalisation(tmp_path)))
    torch.testing.assert_close((image - mean) / std, theirs.pixel_values[0], atol=1e-5, rtol=1e-5)


TRAINING = """
data_preprocessor = dict({beside})
model = dict(type='X', data_preprocessor={inside}, backbone=dict(type='CPVT'))
"""


@pytest.mark.parametrize(
    ('beside', 'inside', 'expected', 'rgb'),
    [
        ('mean=[127.5] * 3', None, None, None),  # no literal: not run
        ('mean=[127.5, 127.5, 127.5], std=[127.5, 127.5, 127.5], to_rgb=True', None, HALF, True),
        ('', 'dict(mean=[1, 2, 3], std=[4, 5, 6])', ((1, 2, 3), (4, 5, 6)), False),
        ('', 'dict(mean=[9], std=[3], bgr_to_rgb=True)', ((9,), (3,)), True),
        ('to_rgb=True', None, ((0,), (1,)), True),
    ],
)
def test_a_training_says_its_values(beside, inside, expected, rgb, tmp_path):
    """A second training from the weights of the first, whose config nobody has to remember."""
    source = TRAINING.format(beside=beside, inside=inside)
    file = tmp_path / 'epoch_3.pth'
    torch.save(dict(state_dict=column().state_dict(), meta=dict(cfg=source, iter=3)), file)
    for name in (file, tmp_path):
        found = find_normalisation(name)
        assert values(found) == expected
        assert found is None or found.rgb == rgb


def test_the_weights_of_a_training_are_not_read_for_its_values(tmp_path):
    """They are read, and compared with their checksums, when they are loaded."""
    inside = 'dict(mean=[127.5, 127.5, 127.5], std=[127.5, 127.5, 127.5], bgr_to_rgb=True)'
    source = TRAINING.format(beside='', inside=inside)
    weights = torch.full((1000,), 7.0)
    file = tmp_path / 'epoch_3.pth'
    torch.save(dict(state_dict=dict(w=weights), meta=dict(cfg=source)), file)
    content = file.read_bytes()
    damaged = content.replace(weights.numpy().tobytes(), (weights + 1).numpy().tobytes())
    assert damaged != content
    file.write_bytes(damaged)
    assert values(find_normalisation(file)) == HALF
    refused(file, 'wrong checksum')


@pytest.mark.parametrize('suffix', ['.pth', '.safetensors'])
def test_a_written_file_carries_the_values(suffix, tmp_path):
    found = find_normalisation('segmenter_vit_small-ade20k')
    file = tmp_path / f'own{suffix}'
    write_checkpoint(column().state_dict(), file, meta=normalisation_meta(found))
    again = find_normalisation(file)
    assert (values(again), again.source) == (HALF, 'its metadata')
    write_checkpoint(column().state_dict(), file, meta=normalisation_meta(None))
    assert find_normalisation(file) is None


def test_a_saved_backbone_carries_the_values(tmp_path):
    """``from_pretrained`` names them, and ``save_pretrained`` writes them."""
    first, second = tmp_path / 'first', tmp_path / 'second'
    column().save_pretrained(first)
    assert not (first / 'preprocessor_config.json').exists()
    assert CPVT.from_pretrained(first).normalisation is None
    write_json(first, 'preprocessor_config.json', image_mean=[0.5] * 3, image_std=[0.5] * 3)
    report = load_checkpoint(column(), first)
    named = 'images: mean [127.5, 127.5, 127.5] and std [127.5, 127.5, 127.5] of RGB'
    assert f'{named} (preprocessor_config.json)' in str(report)
    model = CPVT.from_pretrained(first)
    model.save_pretrained(second)
    assert values(model.normalisation) == values(find_normalisation(second)) == HALF
    CPVT(arch=COLUMN).save_pretrained(second)  # of other weights
    assert find_normalisation(second) is None


@pytest.mark.parametrize(
    ('channels', 'mean', 'std', 'count'),
    [
        (3, HALF[0], HALF[1], 0),
        (3, (127.55, 127.5, 127.45), HALF[1], 0),  # rounded
        (3, (127.5,), (127.5,), 0),  # one value for all channels
        (3, (127.5, 127.5, 120.0), HALF[1], 1),
        (3, HALF[0], (127.5, 120.0, 127.5), 1),
        (3, None, None, 1),  # pixels as they are
        (1, (100.0,), (50.0,), 0),  # no channel of the weights
        (4, (1.0,) * 4, (1.0,) * 4, 0),
        (12, (1.0,) * 12, (1.0,) * 12, 0),
    ],
)
def test_one_line_compares_images_of_three_channels(channels, mean, std, count, monkeypatch):
    said = []
    monkeypatch.setattr(normalisation, 'print_log', lambda text, *_: said.append(text))
    backbone = dict(type='MultiScaleCPVT', in_channels=channels, **ONE_BLOCK)
    preprocessor = dict(type='ValidSizesSegDataPreProcessor', bgr_to_rgb=channels == 3)
    config = semantic_fpn(backbone)
    config['data_preprocessor'] = dict(preprocessor, mean=mean, std=std, size_divisor=1)
    model = build(config)
    warn_of_other_normalisation(model, 'segmenter_vit_small-ade20k')
    warn_of_other_normalisation(model, 'no_such_file.pth')
    assert len(said) == count
    assert all('\n' not in line and 'segmenter_vit_small-ade20k' in line for line in said)
