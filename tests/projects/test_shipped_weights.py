"""Data sets of the shipped models, and the tool that puts trained weights into the package."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from PIL import Image
from shipped_weights import make_bccd, make_imagenette, ship_weights

from cpvt_backbones import CPVT, weights
from cpvt_backbones.analysis.resolution import SweepModel, SweepRow, fingerprint, write_rows
from cpvt_backbones.checkpoints import load_weights, read_checkpoint
from cpvt_backbones.inference import GoodSizes
from cpvt_backbones.toolboxes import read_config

ROOT = Path(__file__).resolve().parents[2]
CONFIG = ROOT / 'configs/imagenette/cpvt-6-blocks_imagenette.py'
VOC = """<annotation><object><name>WBC</name><bndbox>
<xmin>1</xmin><ymin>5</ymin><xmax>40</xmax><ymax>30</ymax></bndbox>
</object><object><name>RBC</name><bndbox>
<xmin>7</xmin><ymin>7</ymin><xmax>{}</xmax><ymax>9</ymax></bndbox></object>
</annotation>"""


def write_image(file, pixels):
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels.astype(np.uint8)).save(file)


def noise(height, width):
    return np.random.default_rng(0).integers(0, 255, (height, width, 3))


@pytest.mark.full
def test_bccd_becomes_what_mmdet_reads(tmp_path):
    """Boxes of Pascal VOC count from 1 and include the last pixel; they end at the image."""
    mmdet = pytest.importorskip('mmdet.datasets')
    source, made = tmp_path / 'BCCD', tmp_path / 'made'
    for folder in ('Annotations', 'ImageSets/Main'):
        (source / folder).mkdir(parents=True)
    for split, names in (('train', 'ab'), ('val', 'c'), ('test', 'd')):
        for name in names:
            write_image(source / f'JPEGImages/{name}.jpg', noise(30, 40))
            text = VOC.format(43 if name == 'd' else 7)
            (source / f'Annotations/{name}.xml').write_text(text)
        (source / f'ImageSets/Main/{split}.txt').write_text('\n'.join(names) + '\n')
    make_bccd.main([str(source), str(made)])
    base = Config.fromfile(ROOT / 'configs/_base_/datasets/bccd.py')
    for split, count, right in (('train', 2, 7), ('val', 1, 7), ('test', 1, 40)):
        options = dict(data_root=str(made), metainfo=base.metainfo, pipeline=[])
        options |= dict(ann_file=f'annotations/{split}.json', data_prefix=dict(img=f'{split}/'))
        data = mmdet.CocoDataset(**options)
        assert len(data) == count
        info = data.get_data_info(0)
        assert Image.open(info['img_path']).size == (40, 30)
        boxes = {one['bbox_label']: one['bbox'] for one in info['instances']}
        names = base.metainfo['classes']
        assert boxes[names.index('WBC')] == [0, 4, 40, 30]
        assert boxes[names.index('RBC')] == [6, 6, right, 9]


def test_imagenette_becomes_squares_of_the_listed_validation_images(tmp_path, monkeypatch):
    """A figure can be measured again only on the same images; files that exist are kept."""
    committed = make_imagenette.LISTED.read_text().split()
    counts = Counter(name.partition('/')[0] for name in committed)
    assert len(set(committed)) == 2000
    assert len(counts) == 10 and set(counts.values()) == {200}

    raw, made, few = tmp_path / 'raw', tmp_path / 'made', tmp_path / 'few.txt'
    names = ['n01/a', 'n01/b', 'n01/c', 'n02/d', 'n02/e']
    for number, name in enumerate(names):
        for split in ('train', 'val'):
            write_image(raw / split / f'{name}.jpeg', noise(60 + 10 * number, 90))
    make_imagenette.main([str(raw), '--list-val', str(few)])
    assert few.read_text().split() == names
    few.write_text('n01/c\nn02/d\n')
    monkeypatch.setattr(make_imagenette, 'LISTED', few)
    kept = made / 'train/n01/a.webp'
    write_image(kept, noise(128, 128))
    before = kept.stat().st_mtime_ns
    make_imagenette.main([str(raw), str(made)])
    for split, expected, side in (('train', names, 128), ('val', ['n01/c', 'n02/d'], 224)):
        files = sorted(made.glob(f'{split}/*/*.webp'))
        assert [f'{file.parent.name}/{file.stem}' for file in files] == expected
        assert {Image.open(file).size for file in files} == {(side, side)}
    assert kept.stat().st_mtime_ns == before
    few.write_text('n01/c\nn03/x\n')
    with pytest.raises(ValueError, match=r'raw/val lacks 1 of the 2 images .* the first is n03/x'):
        make_imagenette.main([str(raw), str(tmp_path / 'other')])


@pytest.fixture
def trained():
    """A classifier of random weights."""
    pytest.importorskip('mmpretrain')
    init_default_scope('mmpretrain')
    return MODELS.build(read_config(CONFIG).model).eval()


@pytest.fixture
def ship(tmp_path, monkeypatch, trained):
    """The tool, which writes into an empty package."""
    (tmp_path / 'package').mkdir()
    monkeypatch.setattr(weights, 'FOLDER', tmp_path / 'package')
    monkeypatch.setattr(weights, 'INDEX', tmp_path / 'package/index.json')
    state = dict(trained.state_dict(), **{'to_teacher.weight': torch.ones(3)})
    torch.save(dict(state_dict=state, optimizer=torch.zeros(9)), tmp_path / 'epoch_1.pth')
    told = ['--commit', 'abc123', '--about', 'A small column']
    told += ['--purpose', 'Toys on tables', '--not-for', 'Games']
    told += ['--data', 'Ten classes', '--terms', 'Research only']
    told += ['--picture', 'A toy at two sizes']

    def ship(name, *options, config=CONFIG):
        words = [name, str(config), str(tmp_path / 'epoch_1.pth'), *told, *map(str, options)]
        ship_weights.main(words)
        return weights.find_shipped(name)

    return ship


def write_sweep(file, config, *rows):
    """Write rows ``(model, size, side, accuracy)``, as measured with the shipped file."""
    found = []
    for name, size, side, top1 in rows:
        source = fingerprint(SweepModel(name, read_config(config), name))
        metrics = {'accuracy/top1': top1}
        found.append(
            SweepRow(name, size, 200, side, side, 0.1, 5.0, 'cpu', source, metrics, zoom=0.5)
        )
    write_rows(file, found)


def test_shipped_weights_are_the_trained_model_and_their_card_has_its_figures(
    ship, trained, tmp_path, monkeypatch
):
    """In fp16, without what only the training had; the same weights give the same file."""
    entry = ship('small-toys')
    assert ship('small-toys').sha256 == entry.sha256
    assert read_checkpoint('small-toys').keys() == trained.state_dict().keys()
    images = torch.randn(1, 3, 40, 56)
    found = CPVT.from_pretrained('small-toys').eval()(images)[0]
    torch.testing.assert_close(found, trained.backbone(images)[0], atol=2e-2, rtol=2e-2)
    model = MODELS.build(read_config(CONFIG).model)
    load_weights(model, str(weights.find_shipped('small-toys').file))
    for name, value in trained.state_dict().items():
        assert torch.equal(model.state_dict()[name], value.half().float())

    sweep, card = tmp_path / 'sizes.csv', tmp_path / 'package/small-toys.md'
    assert not card.exists()
    ship('other-toys')
    rows = ('small-toys', '1', 112, 71.5), ('small-toys', '2', 224, 68.25)
    write_sweep(sweep, CONFIG, *rows, ('other-toys', '1', 9, 1.0))
    ship('small-toys', '--sizes', sweep, '--recipe', '`other.py`', '--decided', 'Two recipes')
    text = card.read_text()
    for part in (
        'figures/card_small-toys.webp" width="480" alt="A toy at two sizes">\n</picture>\n',
        '**For.** Toys on tables.\n\n**Not for.** Games.\n',
        '**Recipe.** `other.py`, at commit abc123.',
        '**Development scores.** Two recipes.\n',
        '| size | mean px | top-1, % |\n',
        '| 1 | 112 x 112 | 71.5 |\n| 2 | 224 x 224 | 68.25 |\n\n',
        'Stay at 1 to 2 times the test scale (112 to 224 px',
        entry.sha256,
    ):
        assert part in text
    expected = GoodSizes(1.0, 2.0, side=112.0, zoom=0.5, metric='accuracy/top1')
    assert GoodSizes.of('small-toys') == expected
    ship('small-toys')
    assert not card.exists()  # it may be untrue of the new file

    # The card of a model that starts from shipped weights names these.
    monkeypatch.setattr(ship_weights, 'ROOT', tmp_path)
    tuned = tmp_path / 'configs/tuned.py'
    tuned.parent.mkdir()
    start = dict(type='Pretrained', checkpoint='small-toys')
    tuned.write_text(f'_base_ = {str(CONFIG)!r}\nmodel = dict(backbone=dict(init_cfg={start!r}))\n')
    ship('tuned-toys', config=tuned)
    write_sweep(sweep, tuned, ('tuned-toys', '1', 112, 71.5))
    assert 'init_cfg' not in ship('tuned-toys', '--sizes', sweep, config=tuned).backbone
    text = card.with_stem('tuned-toys').read_text()
    assert f'from `small-toys` (SHA-256 `{entry.sha256[:12]}...`)' in text
    assert 'It starts from `small-toys`, whose terms hold too' in text
