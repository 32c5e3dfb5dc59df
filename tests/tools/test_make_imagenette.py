"""make_imagenette.py: Imagenette squashed to the squares that the study trains and tests on."""

import importlib
from collections import Counter
from pathlib import Path

import cv2
import numpy as np
import pytest

from cpvt_backbones.engine.decoded import DecodedDataset

ROOT = Path(__file__).resolve().parents[2]


def test_images_become_squares_of_one_size(tmp_path, call, refused):
    """The data set of the study reads them; files that exist are kept."""
    rng = np.random.default_rng(0)
    for split, count in (('train', 3), ('val', 5)):
        for name in ('n01', 'n02'):
            folder = tmp_path / 'raw' / split / name
            folder.mkdir(parents=True)
            for index in range(count):
                picture = rng.integers(0, 255, (60 + 10 * index, 90, 3), dtype=np.uint8)
                cv2.imwrite(str(folder / f'{index}.JPEG'), picture)
    call('make_imagenette', tmp_path / 'raw', tmp_path / 'made', '--val-images', '2')
    for split, names, side in (('train', '012', 128), ('val', '02', 224)):
        folder = str(tmp_path / 'made' / split)
        data = DecodedDataset(
            data_root=folder, cache_dir=str(tmp_path / 'cache'), extensions=('.webp',)
        )
        assert [Path(data.get_data_info(i)['img_path']).stem for i in range(len(data))] == [
            *names,
            *names,
        ]
        assert [data.get_data_info(i)['gt_label'] for i in range(len(data))] == [0] * len(names) + [
            1
        ] * len(names)
        assert data.get_data_info(0)['img'].shape == (side, side, 3)
    kept = tmp_path / 'made/train/n01/0.webp'
    kept.write_bytes(b'kept')
    call('make_imagenette', tmp_path / 'raw', tmp_path / 'made', '--val-images', '2')
    assert kept.read_bytes() == b'kept'
    assert 'lacks 2000 of the 2000 images' in refused(
        'make_imagenette', tmp_path / 'raw', tmp_path / 'made'
    )
    for name, message in (
        ('3.jpg', "n01/3.jpg' cannot be read"),
        ('0.jpg', "n01' has two images named '0'"),
    ):
        (tmp_path / 'raw/train/n01' / name).write_bytes(b'no picture')
        words = tmp_path / 'raw', tmp_path / 'made', '--val-images', '2'
        assert message in refused('make_imagenette', *words)


@pytest.fixture
def tool(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / 'tools'))
    return importlib.import_module('make_imagenette')


def test_validation_images_are_those_of_the_list(tmp_path, tool, monkeypatch):
    """Figures can be measured again only on the same images; their list is written by the tool."""
    raw, made = tmp_path / 'raw', tmp_path / 'made'
    picture = np.zeros((8, 8, 3), np.uint8)
    for split in ('train', 'val'):
        for name in ('n01/b', 'n01/a', 'n01/c', 'n02/d', 'n02/e'):
            file = raw / split / f'{name}.JPEG'
            file.parent.mkdir(parents=True, exist_ok=True)
            cv2.imwrite(str(file), picture)
    tool.main([str(raw), '--list-val', str(tmp_path / 'all.txt')])
    assert (tmp_path / 'all.txt').read_text().split() == [
        'n01/a',
        'n01/b',
        'n01/c',
        'n02/d',
        'n02/e',
    ]

    few = tmp_path / 'few.txt'
    few.write_text('n01/c\nn02/d\n')
    monkeypatch.setattr(tool, 'LISTED', few)
    tool.main([str(raw), str(made)])
    names = {file.relative_to(made).as_posix() for file in made.rglob('*.webp')}
    assert {name for name in names if name.startswith('val')} == {
        'val/n01/c.webp',
        'val/n02/d.webp',
    }
    assert len(names) == 5 + 2

    few.write_text('n01/c\nn03/x\n')
    with pytest.raises(ValueError, match=r'raw/val lacks 1 of the 2 images .* the first is n03/x'):
        tool.main([str(raw), str(tmp_path / 'other')])
    assert not (tmp_path / 'other').exists()
    with pytest.raises(ValueError, match=r'no images in .*train/val'):
        tool.main([str(raw / 'train'), '--list-val', str(few)])


def test_the_committed_list_has_200_images_a_class(tool):
    names = tool.LISTED.read_text().split()
    assert len(set(names)) == len(names) == 2000
    counts = Counter(name.partition('/')[0] for name in names)
    assert len(counts) == 10 and set(counts.values()) == {200}
