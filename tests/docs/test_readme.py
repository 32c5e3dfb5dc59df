"""README: its length, its code, and its configs. The site's first page shows two of them."""

import re
from ast import literal_eval
from pathlib import Path

import pytest
from mmengine.optim import build_optim_wrapper
from mmengine.registry import MODELS
from PIL import Image
from torch.optim import AdamW

from benchmarks import report
from benchmarks.cases import read_suite
from cpvt_backbones import PyramidCPVT
from cpvt_backbones.toolboxes import read_config
from cpvt_backbones.weights import shipped_weights

README = Path(__file__).parents[2] / 'README.md'
TEXT = README.read_text(encoding='utf-8')
BLOCKS = re.findall(r'^```python\n(.+?)^```', TEXT, re.DOTALL | re.MULTILINE)

# Rows of docs/speed.md in the order of the suite, and their lines in the README.
SPEED_ROWS = ("timm's DeiT-S", 'timm, 224 px', 'timm', 'mmseg', 'mmpretrain')
README_ROWS = {'timm': "against timm's Twins", 'mmseg': "against mmseg's port"}


def test_it_is_short():
    assert len(TEXT.splitlines()) <= 120


@pytest.mark.parametrize('toolbox', ['mmdet', 'mmseg'])
def test_a_config_builds_the_model_with_pretrained_weights(toolbox, tmp_path):
    pytest.importorskip(toolbox)
    (block,) = (block for block in BLOCKS if f"'{toolbox}::" in block)
    (tmp_path / 'mine.py').write_text(block)
    cfg = read_config(tmp_path / 'mine.py')
    assert cfg.model.backbone.init_cfg.checkpoint == 'timm://twins_pcpvt_small.in1k'
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
    assert cfg.model.backbone.init_cfg.checkpoint == 'timm://twins_pcpvt_small.in1k'
    model = MODELS.build(dict(cfg.model, _scope_='mmpretrain'))
    assert isinstance(model.backbone, PyramidCPVT)


def test_the_other_code_runs():
    for block in BLOCKS:
        if '_base_' not in block:
            values = {}
            exec(block, values)
            (shown,) = re.findall(r'^# (\(.+\))$', block, re.MULTILINE)
            assert tuple(tuple(one.shape) for one in values['maps']) == literal_eval(shown)


@pytest.mark.parametrize(
    ('picture', 'models'), [('sizes.png', 1), ('sizes_narrow.png', 1), ('vis.jpg', 2)]
)
def test_a_picture_is_of_the_weights_that_ship(picture, models):
    """`make pictures` draws it again."""
    with Image.open(README.parent / 'docs/figures' / picture) as image:
        text = image.info.get('Description') or image.info['comment'].decode()
    words = text.split()
    assert len(words) == 2 * models
    for name, sha256 in zip(words[::2], words[1::2], strict=True):
        assert shipped_weights()[name].sha256 == sha256


def test_speeds_are_those_of_the_csv_files():
    """Both tables of docs/speed.md, the rows of the README, and a line of the site's first page."""
    names = ('docs/speed.md', 'README.md', 'docs/site/index.md')
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
            assert f"{texts[0][:4]} times as fast as {row}'s" in pages[2]
    (milliseconds,) = re.findall(
        r"^\| PyramidCPVT-S, 800 x 1344 \| timm's .*? \| [\d.]+ \| (\d+)", pages[0], re.M
    )
    assert f'CPU, {int(milliseconds) / 1000:.1f} s an image' in pages[1]
