"""Data sets of the shipped models, and the tool that puts trained weights into the package."""

import json
from collections import Counter
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from shipped_weights import make_bccd, make_imagenette, ship_weights

from cpvt_backbones import CPVT, weights
from cpvt_backbones.analysis.resolution import SweepModel, SweepRow, fingerprint, write_rows
from cpvt_backbones.checkpoints import CheckpointError, load_weights, read_checkpoint
from cpvt_backbones.engine.decoded import DecodedDataset
from cpvt_backbones.inference import GoodSizes
from cpvt_backbones.toolboxes import read_config

ROOT = Path(__file__).resolve().parents[2]
CONFIG = ROOT / 'configs/imagenette/cpvt-6-blocks_imagenette.py'
VOC = """<annotation><object><name>WBC</name><bndbox>
<xmin>1</xmin><ymin>5</ymin><xmax>40</xmax><ymax>30</ymax></bndbox>
</object><object><name>{}</name><bndbox>
<xmin>7</xmin><ymin>7</ymin><xmax>{}</xmax><ymax>9</ymax></bndbox></object>
</annotation>"""


def write_image(file, height, width):
    file.parent.mkdir(parents=True, exist_ok=True)
    image = np.random.default_rng(0).integers(0, 255, (height, width, 3), dtype=np.uint8)
    cv2.imwrite(str(file), image)


def test_bccd_becomes_what_mmdet_reads(tmp_path):
    """Boxes of Pascal VOC count from 1 and include the last pixel."""
    mmdet = pytest.importorskip('mmdet.datasets')
    source, made = tmp_path / 'BCCD', tmp_path / 'made'
    for split, names in (('train', 'ab'), ('val', 'c'), ('test', 'd')):
        for name in names:
            write_image(source / 'JPEGImages' / f'{name}.jpg', 30, 40)
            (source / 'Annotations').mkdir(exist_ok=True)
            (source / 'Annotations' / f'{name}.xml').write_text(VOC.format('RBC', 7))
        listed = source / 'ImageSets/Main' / f'{split}.txt'
        listed.parent.mkdir(parents=True, exist_ok=True)
        listed.write_text('\n'.join(names) + '\n')
    make_bccd.main([str(source), str(made)])
    base = Config.fromfile(ROOT / 'configs/_base_/datasets/bccd.py')
    for split, count in (('train', 2), ('val', 1), ('test', 1)):
        options = dict(data_root=str(made), metainfo=base.metainfo, pipeline=[])
        options |= dict(ann_file=f'annotations/{split}.json', data_prefix=dict(img=f'{split}/'))
        data = mmdet.CocoDataset(**options)
        assert len(data) == count
        info = data.get_data_info(0)
        assert cv2.imread(info['img_path']).shape == (30, 40, 3)
        boxes = {one['bbox_label']: one['bbox'] for one in info['instances']}
        names = base.metainfo['classes']
        assert boxes[names.index('WBC')] == [0, 4, 40, 30]
        assert boxes[names.index('RBC')] == [6, 6, 7, 9]

    (source / 'Annotations/d.xml').write_text(VOC.format('RBC', 43))
    make_bccd.main([str(source), str(made)])
    clipped = json.loads((made / 'annotations/test.json').read_text())['annotations'][1]['bbox']
    assert clipped == [6, 6, 34, 3]


def test_imagenette_becomes_squares(tmp_path):
    """The data set of the study reads them; files that exist are kept."""
    raw, made = tmp_path / 'raw', tmp_path / 'made'
    for split, count in (('train', 3), ('val', 5)):
        for name in ('n01', 'n02'):
            for index in range(count):
                write_image(raw / split / name / f'{index}.JPEG', 60 + 10 * index, 90)
    words = [str(raw), str(made), '--val-images', '2']
    make_imagenette.main(words)
    for split, names, side in (('train', '012', 128), ('val', '02', 224)):
        data = DecodedDataset(
            data_root=str(made / split), cache_dir=str(tmp_path / 'cache'), extensions=('.webp',)
        )
        infos = [data.get_data_info(index) for index in range(len(data))]
        assert ''.join(Path(info['img_path']).stem for info in infos) == 2 * names
        assert [info['gt_label'] for info in infos] == [0] * len(names) + [1] * len(names)
        assert infos[0]['img'].shape == (side, side, 3)

    kept = made / 'train/n01/0.webp'
    kept.write_bytes(b'kept')
    make_imagenette.main(words)
    assert kept.read_bytes() == b'kept'
    for name, message in (
        ('3.jpg', "n01/3.jpg' cannot be read"),
        ('0.jpg', "n01' has two images named '0'"),
    ):
        (raw / 'train/n01' / name).write_bytes(b'no picture')
        with pytest.raises(ValueError, match=message):
            make_imagenette.main(words)


def test_validation_images_of_imagenette_are_those_of_the_list(tmp_path, monkeypatch):
    """A figure can be measured again only on the same images."""
    committed = make_imagenette.LISTED.read_text().split()
    counts = Counter(name.partition('/')[0] for name in committed)
    assert len(set(committed)) == 2000
    assert len(counts) == 10 and set(counts.values()) == {200}

    raw, made, few = tmp_path / 'raw', tmp_path / 'made', tmp_path / 'few.txt'
    names = ['n01/a', 'n01/b', 'n01/c', 'n02/d', 'n02/e']
    for split in ('train', 'val'):
        for name in names:
            write_image(raw / split / f'{name}.JPEG', 8, 8)
    make_imagenette.main([str(raw), '--list-val', str(few)])
    assert few.read_text().split() == names

    few.write_text('n01/c\nn02/d\n')
    monkeypatch.setattr(make_imagenette, 'LISTED', few)
    make_imagenette.main([str(raw), str(made)])
    found = [file.relative_to(made / 'val').as_posix() for file in made.glob('val/*/*')]
    assert sorted(found) == ['n01/c.webp', 'n02/d.webp']

    few.write_text('n01/c\nn03/x\n')
    with pytest.raises(ValueError, match=r'raw/val lacks 1 of the 2 images .* the first is n03/x'):
        make_imagenette.main([str(raw), str(tmp_path / 'other')])
    assert not (tmp_path / 'other').exists()


# -- ship_weights.py
# --------------------------------------------------------------------------------------------------


@pytest.fixture
def ship(tmp_path, monkeypatch):
    """The tool, which writes into an empty package, and a trained model."""
    pytest.importorskip('mmpretrain')
    (tmp_path / 'package').mkdir()
    monkeypatch.setattr(weights, 'FOLDER', tmp_path / 'package')
    init_default_scope('mmpretrain')
    model = MODELS.build(read_config(CONFIG).model).eval()
    checkpoint = tmp_path / 'epoch_1.pth'
    torch.save(dict(state_dict=model.state_dict(), optimizer=torch.zeros(9)), checkpoint)

    def ship(name, *options, config=CONFIG):
        told = ['--commit', 'abc123', '--about', 'A small column']
        told += ['--purpose', 'Toys on tables', '--not-for', 'Games']
        told += ['--data', 'Ten classes', '--terms', 'Research only']
        ship_weights.main([name, str(config), str(checkpoint), *told, *options])

    ship.model, ship.checkpoint, ship.package = model, checkpoint, tmp_path / 'package'
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


def test_shipped_weights_are_the_trained_model(ship):
    """In fp16, without what only the training had; the same weights give the same file."""
    state = dict(ship.model.state_dict(), **{'to_teacher.weight': torch.ones(3)})
    torch.save(dict(state_dict=state), ship.checkpoint)
    ship('small-toys')
    digest = weights.find_shipped('small-toys').sha256
    ship('small-toys')
    assert weights.find_shipped('small-toys').sha256 == digest
    ship('second-toys')
    assert list(weights.shipped_weights()) == ['second-toys', 'small-toys']

    assert read_checkpoint('small-toys').keys() == ship.model.state_dict().keys()
    images = torch.randn(1, 3, 40, 56)
    expected = ship.model.backbone.eval()(images)[0]
    found = CPVT.from_pretrained('small-toys').eval()(images)[0]
    torch.testing.assert_close(found, expected, atol=2e-2, rtol=2e-2)
    model = MODELS.build(read_config(CONFIG).model)
    load_weights(model, str(weights.shipped_file('small-toys')))
    for name, value in ship.model.state_dict().items():
        assert torch.equal(model.state_dict()[name], value.half().float())


def test_the_card_has_what_was_measured_with_this_file(ship, tmp_path):
    ship('small-toys')
    card = ship.package / 'small-toys.md'
    assert not card.exists()
    sweep = tmp_path / 'sizes.csv'
    ship('other-toys')
    rows = ('small-toys', '1', 112, 71.5), ('small-toys', '2', 224, 68.25)
    write_sweep(sweep, CONFIG, *rows, ('other-toys', '1', 9, 1.0))
    ship('small-toys', '--sizes', str(sweep), '--recipe', '`other.py`', '--decided', 'Two recipes')
    text = card.read_text()
    assert '**For.** Toys on tables.\n\n**Not for.** Games.\n' in text
    assert '**Recipe.** `other.py`, at commit abc123.' in text
    assert '**Development scores.** Two recipes.\n' in text
    assert '| 1 | 112 x 112 | 71.5 |\n| 2 | 224 x 224 | 68.25 |\n' in text and '| 9 x' not in text
    assert 'at least 90% of its best at 1 to 2 times the test scale (112 to 224 px' in text
    assert weights.find_shipped('small-toys').sha256 in text
    expected = GoodSizes(1.0, 2.0, side=112.0, zoom=0.5, metric='accuracy/top1')
    assert GoodSizes.of('small-toys') == expected
    ship('small-toys')
    assert not card.exists()  # it may be untrue of the new file


def test_the_card_names_the_shipped_weights_that_a_model_starts_from(ship, tmp_path, monkeypatch):
    ship('small-toys')
    monkeypatch.setattr(ship_weights, 'ROOT', tmp_path)
    config, sweep = tmp_path / 'configs/tuned.py', tmp_path / 'sizes.csv'
    config.parent.mkdir()
    start = dict(type='Pretrained', checkpoint='small-toys')
    config.write_text(
        f'_base_ = {str(CONFIG)!r}\nmodel = dict(backbone=dict(init_cfg={start!r}))\n'
    )
    ship('tuned-toys', config=config)
    write_sweep(sweep, config, ('tuned-toys', '1', 112, 71.5))
    ship('tuned-toys', '--sizes', str(sweep), config=config)
    card = (ship.package / 'tuned-toys.md').read_text()
    assert f'from `small-toys` (SHA-256 `{weights.find_shipped("small-toys").sha256}`)' in card
    assert 'It starts from `small-toys`, whose terms hold too' in card
    assert 'init_cfg' not in weights.find_shipped('tuned-toys').backbone


def test_mistakes_in_shipping_leave_the_package_as_it_was(ship, tmp_path, monkeypatch):
    ship('small-toys')
    before = {file.name: file.read_bytes() for file in ship.package.iterdir()}
    outside, sweep = tmp_path / 'model.py', tmp_path / 'sizes.csv'
    outside.write_text(CONFIG.read_text())
    with pytest.raises(ValueError, match=r"name must be <model>-<data> .*, got 'Toys'"):
        ship('Toys')
    with pytest.raises(ValueError, match='config must be in'):
        ship('large-toys', config=outside)
    monkeypatch.setattr(ship_weights, 'LIMIT', 1000)
    for name in ('small-toys', 'large-toys'):
        with pytest.raises(ValueError, match='more than 12 MB'):
            ship(name)
    monkeypatch.undo()
    monkeypatch.setattr(weights, 'FOLDER', ship.package)
    torch.save(dict(state_dict=ship.model.backbone.state_dict()), ship.checkpoint)
    with pytest.raises(CheckpointError, match='does not fit the model: it lacks'):
        ship('small-toys')
    assert {file.name: file.read_bytes() for file in ship.package.iterdir()} == before

    torch.save(dict(state_dict=ship.model.state_dict()), ship.checkpoint)
    write_sweep(sweep, CONFIG, ('small-toys', '1', 112, 1.0))
    ship('other-toys')
    with pytest.raises(ValueError, match="has no rows of 'other-toys', this file"):
        ship('other-toys', '--sizes', str(sweep))
