"""The route from predictions to labels, of docs/tutorials/autolabel.md, for masks and classes."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import shape_data
import tiny_configs
import torch
from PIL import Image


@pytest.fixture
def scenes(tmp_path, monkeypatch):
    """Labelled scenes; those of the folder ``more`` have no labels."""
    monkeypatch.chdir(tmp_path)
    shape_data.write_images(Path('more'), shape_data.make_split(1, 'more', 3, objects=1))
    return shape_data.make_split(0, 'train', 6, objects=1)


def predict(config, call):
    """Predict on ``more`` by a model of the config that was not trained."""
    model = tiny_configs.lively_model(config)
    if hasattr(model, 'decode_head'):
        torch.nn.init.constant_(model.decode_head.conv_seg.bias[1:], 1e6)  # the second class
    tiny_configs.save(model, 'model.pth')
    call('infer', config, 'model.pth', 'more', '--out-dir', 'labels', '--no-vis')


def test_predicted_masks_are_trained_on_beside_the_written_ones(scenes, call, refused, capsys):
    pytest.importorskip('mmseg')
    held_out = shape_data.make_split(2, 'val', 2, objects=1)
    for split, chosen in (('train', scenes), ('val', held_out)):
        shape_data.write_images(Path('images', split), chosen)
        Path('masks', split).mkdir(parents=True)
        for scene in chosen:  # 0 and 255, as many tools write them
            mask = np.uint8(255) * (shape_data.class_map(scene) > 0)
            Image.fromarray(mask).save(f'masks/{split}/{scene.name}.png')
    arguments = ['make_config', 'masks', 'images', 'masks', '--out']
    call(*arguments, 'first.py')
    predict('first.py', call)
    maps = {path.stem: np.array(Image.open(path)) for path in Path('labels/pred').iterdir()}
    assert len(maps) == 3 and all((found == 1).all() for found in maps.values())
    shutil.copytree('more', 'images/train', dirs_exist_ok=True)
    shutil.copytree('labels/pred', 'masks/train', dirs_exist_ok=True)
    assert 'masks of 0 and 255 beside masks of 0 and 1' in refused(*arguments, 'second.py')

    shutil.rmtree('masks')
    shutil.copytree('first/masks', 'masks')
    shutil.copytree('labels/pred', 'masks/train', dirs_exist_ok=True)
    capsys.readouterr()
    call(*arguments, 'second.py')
    assert 'used           9 training images' in capsys.readouterr().out
    for name, found in maps.items():
        written = np.array(Image.open(f'second/masks/train/{name}.png.png'))
        np.testing.assert_array_equal(written, found)


def test_images_are_sorted_into_class_folders(scenes, call, capsys):
    pytest.importorskip('mmpretrain')
    for scene in scenes:
        shape_data.write_images(Path('photos', shape_data.CLASSES[scene.labels[0]]), [scene])
    call('make_config', 'folders', 'photos', '--out', 'first.py')
    predict('first.py', call)
    images = json.loads(Path('labels/images.json').read_text())['images']
    names = {image['id']: image['file_name'] for image in images}
    found = json.loads(Path('labels/predictions.json').read_text())
    for one in found:
        assert 0 <= one['score'] <= 1
        shutil.copy(names[one['image_id']], Path('photos', one['class']))
    capsys.readouterr()
    call('make_config', 'folders', 'photos', '--out', 'second.py')
    assert len(found) == 3 and 'read           9 images' in capsys.readouterr().out
