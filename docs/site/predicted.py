"""The picture at the end of a tutorial: predictions that its last command wrote.

    python docs/site/predicted.py mine/segmentor.py out/segmentor \\
        docs/figures/predicted_segmentor.webp

takes four images of the output folder, evenly spaced, so that no result chooses them. A second file
with two columns, ..._narrow.webp, is for phones.
"""

import argparse
import json
import sys
from pathlib import Path

import numpy as np
from PIL import ExifTags, Image, ImageDraw, ImageOps

sys.path.append(str(Path(__file__).resolve().parents[2]))

from cpvt_backbones.inference.drawing import label_font
from cpvt_backbones.toolboxes import read_config
from cpvt_backbones.weights import find_shipped

SHOWN = 4
BOX = 256, 300  # px that an image fits in: it is small, and so are the letters on it
GAP, LINE = 8, 28  # px between images, and of the text below one
INK = '#1f2328'

Panel = tuple[Image.Image, str]


def choose(folder: Path) -> list[Panel]:
    """Images of an output folder with their predictions: first, last, and at equal distances.

    They are the pictures of tools/infer.py. Of a classifier they are its photos, with the class
    below, because on small ones it would cover them.
    """
    found = json.loads((folder / 'predictions.json').read_text())
    listed = json.loads((folder / 'images.json').read_text())['images']
    names = {image['id']: image['file_name'] for image in listed}
    if 'class' in found[0]:
        panels = [(names[one['image_id']], f'{one["class"]}: {one["score"]:.2f}') for one in found]
    else:
        panels = [(f'{folder}/vis/{Path(name).stem}.jpg', '') for name in names.values()]
    places = np.linspace(0, len(panels) - 1, SHOWN).round().astype(int)
    return [(Image.open(panels[place][0]), panels[place][1]) for place in places]


def arrange(panels: list[Panel], columns: int) -> Image.Image:
    """Images in a grid, on white in both themes."""
    fitted = [(ImageOps.contain(image, BOX), text) for image, text in panels]
    line = LINE if any(text for _, text in panels) else 0
    height = max(image.height for image, _ in fitted) + line + GAP
    rows = -(-len(panels) // columns)
    sheet = Image.new('RGB', (columns * (BOX[0] + GAP) + GAP, rows * height + GAP), 'white')
    draw = ImageDraw.Draw(sheet)
    for place, (image, text) in enumerate(fitted):
        left = GAP + place % columns * (BOX[0] + GAP)
        bottom = GAP + (place // columns + 1) * height - GAP - line
        sheet.paste(image, (left + (BOX[0] - image.width) // 2, bottom - image.height))
        draw.text((left + BOX[0] / 2, bottom + 2), text, INK, label_font(20), anchor='ma')
    return sheet


if __name__ == '__main__':
    parser = argparse.ArgumentParser(description=__doc__.partition('\n\n')[0])
    parser.add_argument('config', help='of the training; names the weights that it starts from')
    parser.add_argument('folder', type=Path, help='output folder of tools/infer.py')
    parser.add_argument('picture', type=Path, help='.webp')
    args = parser.parse_args()
    shipped = find_shipped(read_config(args.config).load_from)
    exif = Image.Exif()  # a test compares it with the weights that ship
    exif[ExifTags.Base.ImageDescription] = f'{shipped.name} {shipped.sha256}'
    for file, columns in (
        (args.picture, 4),
        (args.picture.with_stem(f'{args.picture.stem}_narrow'), 2),
    ):
        arrange(choose(args.folder), columns).save(file, quality=85, method=6, exif=exif)
