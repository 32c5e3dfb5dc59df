"""README: its length, its code, and its configs. The site's first page shows two of them."""

import re
from ast import literal_eval
from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.hub import get_config
from mmengine.optim import build_optim_wrapper
from mmengine.registry import MODELS
from PIL import ExifTags, Image
from torch.optim import AdamW

from benchmarks import report
from benchmarks.cases import read_suite
from cpvt_backbones import PyramidCPVT
from cpvt_backbones.toolboxes import read_config
from cpvt_backbones.weights import shipped_weights

README = Path(__file__).parents[2] / 'README.md'
TEXT = README.read_text(encoding='utf-8')
BLOCKS = re.findall(r'^```python\n(.+?)^```', TEXT, re.DOTALL | re.MULTILINE)

# Rows of docs/benchmarks/details.md in the order of the suite, and their lines in the README.
SPEED_ROWS = ("timm's DeiT-S", 'timm, 224 px', 'timm', 'mmseg', 'mmpretrain')
README_ROWS = {'timm': "against timm's Twins", 'mmseg': "against mmseg's port"}
SITE_ROWS = {'timm': "s an image | {} x timm's speed", 'mmseg': "{} x mmseg's"}


def test_it_is_short():
    assert len(TEXT.splitlines()) <= 120


@pytest.mark.parametrize('toolbox', ['mmdet', 'mmseg'])
def test_a_config_builds_the_model_with_pretrained_weights(toolbox, tmp_path):
    pytest.importorskip(toolbox)
    (block,) = (block for block in BLOCKS if f"'{toolbox}::" in block)
    (tmp_path / 'mine.py').write_text(block)
    cfg = read_config(tmp_path / 'mine.py')
    assert cfg.model.backbone.init_cfg == 'timm://twins_pcpvt_small.in1k'
    model = MODELS.build(dict(cfg.model, _scope_=toolbox))
    assert isinstance(model.backbone, PyramidCPVT)
    assert list(model.backbone.out_channels) == model.neck.in_channels
    # A ViT learns little by the SGD of many base configs; PEG's weights do not decay.
    options = dict(cfg.optim_wrapper, type='OptimWrapper')  # one of them is of a GPU
    optimizer = build_optim_wrapper(model, options).optimizer
    assert isinstance(optimizer, AdamW)
    decay = {
        id(parameter): group['weight_decay']
        for group in optimizer.param_groups
        for parameter in group['params']
    }
    pegs = [value for name, value in model.backbone.named_parameters() if 'pos_block' in name]
    assert {decay[id(value)] for value in pegs} == {0}
    assert max(decay.values()) > 0


def test_the_config_of_a_classifier_on_the_first_page_builds(tmp_path):
    pytest.importorskip('mmpretrain')
    page = (README.parent / 'docs/site/index.md').read_text(encoding='utf-8')
    (block,) = re.findall(r'^```python\n(.+?)^```', page, re.DOTALL | re.MULTILINE)
    (tmp_path / 'mine.py').write_text(block)
    cfg = read_config(tmp_path / 'mine.py')
    assert cfg.model.backbone.init_cfg == 'timm://twins_pcpvt_small.in1k'
    model = MODELS.build(dict(cfg.model, _scope_='mmpretrain'))
    assert isinstance(model.backbone, PyramidCPVT)


def test_the_other_code_runs():
    for block in BLOCKS:
        if '_base_' not in block:
            values = {}
            exec(block, values)
            (shown,) = re.findall(r'^# (\(.+\))$', block, re.MULTILINE)
            assert tuple(tuple(one.shape) for one in values['maps']) == literal_eval(shown)


def test_the_configs_have_the_form_of_the_guide():
    """Each is the first part of one of docs/own_config.md, without its own classes."""
    guide = (README.parent / 'docs/own_config.md').read_text(encoding='utf-8')
    configs = [block for block in BLOCKS if '_base_' in block]
    assert len(configs) == 2
    for block in configs:
        (whole,) = (
            text
            for text in re.findall(r'^```python\n(.+?)^```', guide, re.DOTALL | re.MULTILINE)
            if block.splitlines()[1] in text.splitlines()
        )
        lines = {line.rstrip('),') for line in whole.splitlines()}
        assert {line.rstrip('),') for line in block.splitlines()[1:]} <= lines


FIGURES = README.parent / 'docs/figures'
SHEETS = sorted(FIGURES.glob('sheet*.webp'))


@pytest.mark.parametrize('picture', SHEETS, ids=lambda path: path.name)
def test_a_sheet_of_labels_has_no_ground(picture):
    """White between or below the images would stand out on a dark page."""
    with Image.open(picture) as image:
        alpha = np.asarray(image.convert('RGBA'))[..., 3]
    columns = alpha.max(axis=0)
    assert (alpha == columns).all()  # images fill the height
    assert columns[[0, -1]].all() and (columns == 0).sum() in (8, 16, 24)  # px between them


@pytest.mark.parametrize(
    'picture', sorted({*FIGURES.glob('*.webp')} - {*SHEETS}), ids=lambda path: path.name
)
def test_a_picture_is_of_the_weights_that_ship(picture):
    """`make pictures` draws it again."""
    with Image.open(picture) as image:
        name, sha256 = image.getexif()[ExifTags.Base.ImageDescription].split()
    assert shipped_weights()[name].sha256 == sha256


def test_the_picture_of_a_prediction_is_of_the_weights_that_ship():
    """`make pictures` draws it again."""
    with Image.open(README.parent / 'docs/figures/vis.jpg') as image:
        name, sha256 = image.info['comment'].decode().split()
    assert shipped_weights()[name].sha256 == sha256


def test_speeds_are_those_of_the_csv_files():
    """Tables of two pages on speed, the rows of the README, and a line of the site's first page."""
    names = ('docs/benchmarks/details.md', 'README.md', 'docs/site/index.md', 'docs/speed.md')
    pages = [(README.parent / name).read_text() for name in names]
    pages[2] = ' '.join(pages[2].split())
    _, ratios = read_suite('allocator')
    kept, returned = (
        report.read_rows(README.parent / f'docs/benchmarks/{name}.csv')
        for name in ('cpu', 'allocator')
    )
    for ratio, row in zip(ratios, SPEED_ROWS, strict=True):
        values = [ratio.values(rows) for rows in (kept, returned)]
        texts = [f'{one.median():.2f} ({one.min():.2f}-{one.max():.2f})' for one in values]
        assert f'| {row} | {texts[0]} | {texts[1]} |' in pages[0]
        if readme := README_ROWS.get(row):
            line = next(line for line in pages[1].splitlines() if readme in line)
            assert re.findall(r'\d\.\d\d', line) == [text[:4] for text in texts]
            assert SITE_ROWS[row].format(texts[0][:4]) in pages[2]
    (milliseconds,) = re.findall(
        r"^\| PyramidCPVT-S, 800 x 1344 \| timm's .*? \| [\d.]+ \| (\d+)", pages[3], re.M
    )
    assert f'CPU, {int(milliseconds) / 1000:.1f} s an image' in pages[1]
    assert f'800 x 1344 px, CPU, {int(milliseconds) / 1000:.1f} s an image' in pages[2]


def test_what_it_says_of_its_peers():
    """The table beside timm, mmseg and mmpretrain, as these packages are installed."""
    timm = pytest.importorskip('timm')
    pytest.importorskip('mmseg')
    pytest.importorskip('mmpretrain')
    from mmpretrain.models.backbones import PCPVT as PretrainPCPVT
    from mmpretrain.models.backbones import VisionTransformer
    from mmseg.models.backbones import PCPVT

    vit = timm.create_model('vit_tiny_patch16_224', features_only=True)
    assert set(vit.feature_info.reduction()) == {16}

    twins = timm.create_model('twins_pcpvt_small', features_only=True, out_indices=(0,))
    cfg = get_config('mmseg::twins/twins_pcpvt-s_fpn_fpnhead_8xb4-80k_ade20k-512x512.py')
    backbone = {key: cfg.model.backbone[key] for key in cfg.model.backbone}
    del backbone['type'], backbone['init_cfg']
    ports = [PCPVT(**backbone), PretrainPCPVT(arch='small', out_indices=(0,), drop_path_rate=0.2)]
    ours = PyramidCPVT(arch='small', out_indices=(0,), drop_path_rate=0.2)
    images = torch.zeros(1, 3, 333, 517)
    sizes = [tuple(model.eval()(images)[0].shape[-2:]) for model in (twins, *ports, ours)]
    assert sizes == [(83, 129), (84, 130), (84, 130), (84, 130)]
    assert 4 * 83 < 333 and 4 * 129 < 517

    plain = VisionTransformer('deit-tiny', out_type='featmap', out_indices=(3, 11))
    assert {tuple(one.shape[-2:]) for one in plain(images)} == {(21, 33)}

    image = torch.randn(1, 3, 64, 96)
    padded = torch.nn.functional.pad(image, (0, 64, 0, 32))
    padded.valid_sizes = [(64, 96)]
    for model, keeps in ((twins, False), (ports[0], False), (ports[1], False), (ours, True)):
        with torch.no_grad():
            alone, beside = model(image)[0], model(padded)[0][..., :16, :24]
        assert torch.allclose(alone, beside, atol=1e-4) == keeps

    for port in ports:  # the rate is that of the block and that of its branches
        block = next(m for m in reversed([*port.modules()]) if hasattr(m, 'drop_path'))
        rates = [m.drop_prob for m in block.modules() if type(m).__name__ == 'DropPath']
        assert len(rates) == 3 and min(rates) > 0
    assert 'paramwise_cfg' not in cfg.optim_wrapper
    assert cfg.optim_wrapper.optimizer.weight_decay > 0
    whole = timm.create_model('twins_pcpvt_small')
    pegs = {name for name, _ in whole.named_parameters() if 'pos_block' in name}
    assert pegs and pegs <= whole.no_weight_decay()
