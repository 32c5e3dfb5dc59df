"""The demo's picture: for each image size the boxes on the image, the predicted mask and the true one."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

# px of the picture. A panel's image is enlarged or reduced to its width; the two masks stand beside it, half as large.
NARROW, WIDE, GAP, TITLE = 512, 1048, 16, 44
INK, PAPER = (30, 30, 30), (255, 255, 255)


@dataclass(frozen=True)
class Panel:
    """One scene and what the models say of it.

    Args:
        image: Image file.
        labels: Its true index map (PNG).
        detections: ``boxes``, ``scores`` and ``classes`` of a detector.
        index_map: (H, W) of a segmentor.
        title: What to write above.
    """

    image: Path
    labels: Path
    detections: dict[str, Any]
    index_map: np.ndarray
    title: str


def choose_scene(folder: Path, digits: int) -> str:
    """Name of the first scene of a set whose number of digits comes nearest to ``digits``.

    Chosen by what is in it, not by how well a model does on it.
    """
    coco = json.loads((folder / 'instances.json').read_text())
    counts = Counter(annotation['image_id'] for annotation in coco['annotations'])
    image = min(coco['images'], key=lambda image: abs(counts[image['id']] - digits))
    return Path(image['file_name']).stem


def compose(panels: Sequence[Panel], palette: Sequence[Sequence[int]]) -> Image.Image:
    """Lay the panels out, two square ones in a row, a wide one in a row of its own.

    Args:
        panels: What to show.
        palette: RGB of each class of the index maps; the digits' colours are also their boxes'.
    """
    blocks = [_block(panel, palette) for panel in panels]
    rows: list[list[Image.Image]] = []
    for block in blocks:
        if rows and sum(b.width for b in rows[-1]) + GAP + block.width <= _block_width(WIDE):
            rows[-1].append(block)
        else:
            rows.append([block])
    heights = [max(block.height for block in row) for row in rows]
    picture = Image.new('RGB', (_block_width(WIDE) + 2 * GAP, sum(heights) + GAP * (len(rows) + 1)), PAPER)
    y = GAP
    for row, height in zip(rows, heights, strict=True):
        x = GAP
        for block in row:
            picture.paste(block, (x, y))
            x += block.width + GAP
        y += height + GAP
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
    block = Image.new('RGB', (_block_width(width), TITLE + height), PAPER)
    ImageDraw.Draw(block).text((0, TITLE // 2), panel.title, fill=INK, font=_font(24), anchor='lm')
    block.paste(_with_boxes(image.resize((width, height), Image.Resampling.BICUBIC), panel, palette, scale), (0, TITLE))
    for i, (name, index_map) in enumerate(
        (('predicted mask', panel.index_map), ('truth', np.asarray(Image.open(panel.labels))))
    ):
        mask = Image.fromarray(np.asarray(palette, np.uint8)[index_map]).resize(half, Image.Resampling.NEAREST)
        _tag(ImageDraw.Draw(mask), (4, 4), name, (255, 255, 255), (60, 60, 60), 15)
        block.paste(mask, (width + GAP // 2, TITLE + i * (half_height + GAP // 2)))
    return block


def _with_boxes(image: Image.Image, panel: Panel, palette: Sequence[Sequence[int]], scale: float) -> Image.Image:
    draw = ImageDraw.Draw(image)
    found = panel.detections
    size = 16 if scale >= 2 else 11
    boxes = [[side * scale for side in box] for box in found['boxes']]
    colours = [tuple(palette[1 + int(name)]) for name in found['classes']]
    for box, colour in zip(boxes, colours, strict=True):
        draw.rectangle(box, outline=colour, width=3 if scale >= 2 else 2)
    # Labels after all boxes, so that none is crossed by a line.
    for box, colour, name, score in zip(boxes, colours, found['classes'], found['scores'], strict=True):
        text = f'{name} {score:.2f}'
        above = box[1] - size - 4
        # Dark letters on bright colours and the reverse.
        dark = np.dot(colour, (0.299, 0.587, 0.114)) > 140
        x = min(box[0], image.width - draw.textlength(text, _font(size)) - 4)
        _tag(draw, (x, above if above >= 0 else box[3] + 1), text, (0, 0, 0) if dark else (255, 255, 255), colour, size)
    return image


def _tag(
    draw: ImageDraw.ImageDraw,
    position: tuple[float, float],
    text: str,
    ink: tuple[int, ...],
    paper: tuple[int, ...],
    size: int,
) -> None:
    x, y = position
    draw.rectangle((x, y, x + draw.textlength(text, _font(size)) + 4, y + size + 3), fill=paper)
    draw.text((x + 2, y + size / 2 + 1.5), text, fill=ink, font=_font(size), anchor='lm')


def _font(size: int) -> ImageFont.FreeTypeFont:
    return ImageFont.load_default(size)
