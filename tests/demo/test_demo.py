"""The demo: targets, picture, and (slow) a whole run with little data."""

import json

import numpy as np
import picture
import pytest
from digit_scenes import write_scenes
from PIL import Image

import demo

pytest.importorskip('mmdet')
pytest.importorskip('mmseg')


def rows(ap50, larger, miou):
    return [dict(ap50=ap50, miou=miou), dict(ap50=larger, miou=0.1)]


def test_targets_reached():
    assert demo.missed_targets(rows(0.7, 0.65, 0.6)) == []


@pytest.mark.parametrize(
    ('figures', 'words'),
    [
        ((0.699, 0.699, 0.6), 'AP50 at the training size is 0.699, below 0.7'),
        ((0.7, 0.7, 0.599), 'mIoU at the training size is 0.599, below 0.6'),
        ((0.8, 0.749, 0.6), 'AP50 at 1.6 times the training size is lower by 0.051, more than 0.05'),
    ],
)
def test_missed_target_is_named(figures, words):
    assert demo.missed_targets(rows(*figures)) == [words]


def test_sizes_are_as_documented():
    first, larger, odd, huge = demo.SIZES
    assert (first.width, first.height) == (demo.TRAIN_SIDE, demo.TRAIN_SIDE)
    assert larger.width / first.width == pytest.approx(1.6, abs=0.03)
    assert odd.width % 16 and odd.height % 16 and odd.width != odd.height
    assert max(huge.width, huge.height) > 1000


def test_picture_shows_every_size(tmp_path):
    panels = []
    for width, height in ((40, 40), (50, 50), (90, 50)):
        folder = write_scenes(root=tmp_path, split='heldout', width=width, height=height, count=2)
        name = picture.choose_scene(folder, digits=1)
        truth = np.asarray(Image.open(folder / 'labels' / f'{name}.png'))
        annotations = json.loads((folder / 'instances.json').read_text())['annotations']
        x, y, w, h = next(a['bbox'] for a in annotations if a['image_id'] == int(name))
        panels.append(
            picture.Panel(
                image=folder / 'images' / f'{name}.jpg',
                labels=folder / 'labels' / f'{name}.png',
                detections=dict(boxes=[[x, y, x + w, y + h]], scores=[0.9], classes=['3']),
                seg_map=truth,
                title=f'{width} x {height} px',
            )
        )
    palette = [(i * 20, 255 - i * 20, 128) for i in range(11)]
    result = picture.compose(panels, palette)
    # Two square panels side by side above the wide one.
    assert result.width == picture._block_width(picture.WIDE) + 2 * picture.GAP
    narrow, wide = picture.TITLE + picture.NARROW, picture.TITLE + round(50 * picture.WIDE / 90)
    assert result.height == narrow + wide + 3 * picture.GAP
    colours = {colour for _, colour in result.getcolors(1 << 20)}
    assert palette[0] in colours and palette[4] in colours, 'masks, and the box of a 3'


@pytest.mark.slow
def test_whole_demo_with_little_data(tmp_path):
    size = demo.TestSize
    options = dict(
        work_dir=tmp_path / 'work',
        data_root=tmp_path / 'data',
        sizes=(size(128, 128, 3, 4), size(208, 208, 2, 4), size(75, 50, 2, 2)),
        train_scenes=16,
        iterations=2,
    )
    results = demo.run(**options)
    assert [(row['width'], row['height']) for row in results['sizes']] == [(128, 128), (208, 208), (75, 50)]
    assert len(results['missed']) >= 2, 'two iterations teach nothing'
    assert json.loads((tmp_path / 'work/results.json').read_text()) == results
    assert len((tmp_path / 'work/results.csv').read_text().splitlines()) == 4
    assert Image.open(tmp_path / 'work/demo.png').width > 1000
    # A finished training is kept; other settings start another.
    again = demo.run(**options)
    assert again['sizes'] == results['sizes'] and again['training'] == results['training']
    longer = demo.run(**{**options, 'iterations': 3})
    assert (tmp_path / 'work/detector/iter_3.pth').is_file()
    assert longer['training']['detector']['seconds'] > 0
