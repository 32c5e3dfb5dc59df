"""The pictures of predictions at the end of the tutorials."""

import json
import re
import sys
from importlib import import_module
from pathlib import Path

import pytest
from PIL import Image

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / 'docs/site'))
predicted = import_module('predicted')


def write_output(folder, entry, count):
    """An output folder of tools/infer.py; photo ``i`` has a grey of ``i``."""
    (folder / 'vis').mkdir(parents=True)
    images = []
    for i in range(count):
        photo = folder.parent / f'photo {i}.png'
        Image.new('L', (20, 40), i).save(photo)
        Image.new('L', (64, 64), i).save(folder / f'vis/photo {i}.jpg')
        images.append(dict(id=i + 1, file_name=str(photo)))
    found = [dict(entry, image_id=image['id']) for image in images]
    (folder / 'images.json').write_text(json.dumps(dict(images=images)))
    (folder / 'predictions.json').write_text(json.dumps(found))


@pytest.mark.parametrize(
    ('entry', 'size', 'text'),
    [
        ({'class': 'cat', 'score': 0.914}, (20, 40), 'cat: 0.91'),
        ({'bbox': [1, 2, 3, 4], 'score': 0.9}, (64, 64), ''),
        ({'seg_map': 'pred/photo.png'}, (64, 64), ''),
    ],
)
def test_images_are_evenly_spaced(entry, size, text, tmp_path):
    write_output(tmp_path / 'out', entry, count=10)
    panels = predicted.choose(tmp_path / 'out')
    assert [image.getpixel((0, 0)) for image, _ in panels] == [0, 3, 6, 9]
    assert {image.size for image, _ in panels} == {size}
    assert {caption for _, caption in panels} == {text}
    wide, narrow = (predicted.arrange(panels, columns) for columns in (4, 2))
    assert wide.width > 1.9 * narrow.width and narrow.height > 1.9 * wide.height


def test_each_picture_is_in_a_tutorial_for_both_widths():
    files = {path.name for path in (ROOT / 'docs/figures').glob('predicted_*.webp')}
    shown = set()
    for page in (ROOT / 'docs/tutorials').glob('*.md'):
        shown |= {*re.findall(r'figures/(predicted_\w+\.webp)', page.read_text())}
    assert files == shown and len(files) >= 4
    assert {name.replace('.webp', '_narrow.webp') for name in files if 'narrow' not in name} < files
