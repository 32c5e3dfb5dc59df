"""The demo's picture: for each image size the predicted boxes, the predicted mask and the
true one.
"""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageDraw, ImageFont

# px. Images are scaled to one of two widths; the two masks are at its right, half as large.
NARROW, WIDE, GAP, TITLE = 512, 1048, 16, 44
WHITE, BLACK, GREY = (255, 255, 255), (0, 0, 0), (60, 60, 60)
# Titles on no background: they can be read on a light and on a dark page.
INK, CLEAR = (115, 115, 115), (115, 115, 115, 0)


class Panel(NamedTuple):
    """One scene: image file, true class of every pixel (PNG), predictions of both models, text
    above the image.
    """

    image: Path
    labels: Path
    detections: dict[str, Any]
    seg_map: np.ndarray
    title: str


def choose_scene(folder: Path, digits: int) -> str:
    """Name of the first scene of a set whose number of digits is nearest to ``digits``.

    The choice depends on the scene's content, not on how well a model does on it.
    """
    coco = json.loads((folder / 'instances.json').read_text())
    counts = Counter(annotation['image_id'] for annotation in coco['annotations'])
    image = min(coco['images'], key=lambda image: abs(counts[image['id']] - digits))
    return Path(image['file_name']).stem


def largest_classes(seg_map: np.ndarray, names: Sequence[str]) -> str:
    """The three classes with most pixels of a map (H, W), with their shares."""
    share = np.bincount(seg_map.ravel(), minlength=len(names)) / seg_map.size
    largest = [i for i in np.argsort(-share)[:3] if share[i]]
    return ', '.join(f'{names[i].lower()} {share[i]:.0%}' for i in largest)


def compose(panels: Sequence[Panel], palette: Sequence[Sequence[int]]) -> Image.Image:
    """Lay the panels out: two square ones in a row, a wide one in a row of its own.

    ``palette`` is the RGB of each class of the segmentation maps; a digit's boxes have its colour.
    """
    spots: list[tuple[int, int, Image.Image]] = []
    x, y, row_height = GAP, GAP, 0
    for block in (_block(panel, palette) for panel in panels):
        if x > GAP and x + block.width > GAP + _block_width(WIDE):
            x, y, row_height = GAP, y + row_height + GAP, 0
        spots.append((x, y, block))
        x, row_height = x + block.width + GAP, max(row_height, block.height)
    picture = Image.new('RGBA', (_block_width(WIDE) + 2 * GAP, y + row_height + GAP), CLEAR)
    for left, top, block in spots:
        picture.paste(block, (left, top))
    return picture


def _block_width(width: int) -> int:
    return width + GAP // 2 + (width - GAP // 2) // 2


def _block(panel: Panel, palette: Sequence[Sequence[int]]) -> Image.Image:
    image = Image.open(panel.image).convert('RGB')
    width = NARROW if image.width <= 1.3 * image.height else WIDE
    scale = width / image.width
    height = round(image.height * scale)
    half_height = (height - GAP // 2) // 2
    half = (round(half_height * image.width / image.height), half_height)
    block = Image.new('RGBA', (_block_width(width), TITLE + height), CLEAR)
    ImageDraw.Draw(block).text((0, TITLE // 2), panel.title, fill=INK, font=_font(24), anchor='lm')
    block.paste(
        _with_boxes(image.resize((width, height), Image.Resampling.BICUBIC), panel, palette, scale),
        (0, TITLE),
    )
    maps = (('predicted mask', panel.seg_map), ('truth', np.asarray(Image.open(panel.labels))))
    for i, (name, seg_map) in enumerate(maps):
        mask = Image.fromarray(np.asarray(palette, np.uint8)[seg_map]).resize(
            half, Image.Resampling.NEAREST
        )
        _tag(ImageDraw.Draw(mask), (4, 4), name, WHITE, GREY, 15)
        block.paste(mask, (width + GAP // 2, TITLE + i * (half_height + GAP // 2)))
    return block


def _with_boxes(
    image: Image.Image, panel: Panel, palette: Sequence[Sequence[int]], scale: float
) -> Image.Image:
    draw = ImageDraw.Draw(image)
    # The best last, on top.
    found = {key: values[::-1] for key, values in panel.detections.items()}
    size, line = (16, 3) if scale >= 2 else (11, 2)
    boxes = [[side * scale for side in box] for box in found['boxes']]
    colours = [tuple(palette[1 + int(name)]) for name in found['classes']]
    for box, colour in zip(boxes, colours, strict=True):
        draw.rectangle(box, outline=colour, width=line)
    # All labels after all boxes, so that no line crosses a label.
    for box, colour, name, score in zip(
        boxes, colours, found['classes'], found['scores'], strict=True
    ):
        text, above = f'{name} {score:.2f}', box[1] - size - 4
        bright = np.dot(colour, (0.299, 0.587, 0.114)) > 140
        x = min(box[0], image.width - draw.textlength(text, _font(size)) - 4)
        _tag(
            draw,
            (x, above if above >= 0 else box[3] + 1),
            text,
            BLACK if bright else WHITE,
            colour,
            size,
        )
    return image


def _tag(
    draw: ImageDraw.ImageDraw,
    corner: tuple[float, float],
    text: str,
    ink: Any,
    paper: Any,
    size: int,
) -> None:
    (x, y), font = corner, _font(size)
    draw.rectangle((x, y, x + draw.textlength(text, font) + 4, y + size + 3), fill=paper)
    draw.text((x + 2, y + size / 2 + 1.5), text, fill=ink, font=font, anchor='lm')


def _font(size: int) -> ImageFont.FreeTypeFont:
    return ImageFont.load_default(size)
