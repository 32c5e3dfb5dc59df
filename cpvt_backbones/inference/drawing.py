"""Pictures of predictions."""

import functools
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import cv2
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from cpvt_backbones.errors import InputError
from cpvt_backbones.images.windows import no_class, read_map, resize_classes
from cpvt_backbones.text import printable

from .colours import distinct_colours
from .predictions import Prediction, decode_mask
from .sizes import fit

OPACITY = 0.6  # opacity of a class colour over the image
MAX_PREVIEW_SIDE = 2048  # px; drawing a pixel costs far more than reading it
SHEET_SIDE = 480  # px, the longer side of an image on a contact sheet
_CAPTION = 18  # px, height of a text line on a contact sheet
_GAP = 8  # px between images on a contact sheet
LEGEND = 30  # legend letters: 1 / LEGEND of the picture's mean side, at least 12 px
# Names of classes that are not drawn over the image.
BACKGROUND = ('background', '_background_', 'bg', 'unlabelled', 'unlabeled', 'void')
Colour = tuple[int, ...]


class Style(Protocol):
    """Task, class names and palette, the attributes of a :class:`.Predictor` that drawing uses."""

    task: str
    classes: Sequence[str] | None
    palette: Sequence[Sequence[int]] | None


@dataclass
class ClassStyle:
    """A :class:`Style` without a model, to draw labels."""

    task: str
    classes: Sequence[str] | None
    palette: Sequence[Sequence[int]] | None = None


def class_colours(predictor: Style) -> np.ndarray:
    """Return RGB of each class, (N, 3) uint8: the predictor's palette, or distinct colours.

    The first distinct colours are those of the classes that are not in ``BACKGROUND``.
    """
    palette, names = predictor.palette, predictor.classes
    if palette is not None and not _is_random(palette):
        return np.array(palette, np.uint8)
    if not names:
        return distinct_colours(1 << 16)
    order = np.argsort([_is_background(name) for name in names], kind='stable')
    colours = np.empty((len(names), 3), np.uint8)
    colours[order] = distinct_colours(len(names))
    return colours


def _is_background(name: str) -> bool:
    return name.lower() in BACKGROUND


def _is_random(palette: Sequence[Sequence[int]]) -> bool:
    """``True`` for mmseg's random palette, in which greens repeat."""
    return np.array_equal(palette, _drawn_palette(len(palette)))


@functools.cache
def _drawn_palette(count: int) -> np.ndarray:
    return np.random.RandomState(42).randint(0, 255, size=(count, 3))


def make_preview(image: Any) -> np.ndarray:
    """Copy an image to draw on as RGB, reduced to sides of at most ``MAX_PREVIEW_SIDE``.

    Three channels are BGR. Of more channels, the first three are shown as RGB. Of one or two, the
    first is shown in grey.
    """
    if max(image.shape[:2]) > MAX_PREVIEW_SIDE:
        image = fit(image, (MAX_PREVIEW_SIDE, MAX_PREVIEW_SIDE))
    height, width, channels = image.shape
    pixels = image[:height, :width]
    if channels < 3:
        return np.repeat(pixels[..., :1], 3, axis=2)
    # OpenCV copies the channels many times faster than NumPy.
    return cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB) if channels == 3 else pixels[..., :3].copy()


def draw_prediction(
    rgb: np.ndarray,
    prediction: Prediction,
    predictor: Style,
    size: tuple[int, int],
    *,
    opacity: float = OPACITY,
) -> np.ndarray:
    """Draw a prediction on the image.

    Boxes show classes and scores; labels without ``scores`` show classes only. A text is left out
    if it would cover the text of a box with a higher score. Each mask has its own colour. A class
    map gets a legend below it, which increases the picture's height. Classes in ``BACKGROUND`` and
    pixels without data are not coloured. Each panoptic segment has a colour, a border, a name and a
    legend entry. A classifier's class is written on the image.

    Args:
        rgb: Picture (h, w, 3) from :func:`make_preview`, which may be overwritten.
        prediction: The prediction; see :class:`.Inferencer`.
        predictor: Task, class names and palette.
        size: (width, height) in px of the predicted image.
        opacity: Opacity of masks and class maps over the image, 0 to 1.
    """
    if predictor.task == 'panoptic':
        return _draw_segments(rgb, prediction, opacity)
    if predictor.task == 'segmentation':
        return _draw_map(rgb, prediction['seg_map'], predictor, opacity)
    if predictor.task == 'classification':
        picture = _Canvas(Image.fromarray(rgb))
        name = _label(prediction['label'], prediction['class'], prediction.get('score'))
        shade = _shade(class_colours(predictor)[prediction['label']])
        picture.write((0, 0, 0, 0), name, shade, font=picture.title_font(name))
        return np.asarray(picture.image)
    return _draw_instances(rgb, prediction, predictor, size, opacity)


def fit_to_sheet(rgb: np.ndarray) -> np.ndarray:
    """Scale the longer side to ``SHEET_SIDE``; enlarged images keep hard pixel edges."""
    height, width = rgb.shape[:2]
    factor = SHEET_SIDE / max(height, width)
    size = max(1, round(width * factor)), max(1, round(height * factor))
    how = cv2.INTER_AREA if factor < 1 else cv2.INTER_NEAREST
    return cv2.resize(rgb, size, interpolation=how)


def contact_sheet(pictures: Sequence[tuple[np.ndarray, str]], columns: int = 4) -> Image.Image:
    """Arrange pictures in rows, with a line of text below each."""
    rows = [pictures[i : i + columns] for i in range(0, len(pictures), columns)]
    width = max(picture.shape[1] for picture, _ in pictures) + _GAP
    heights = [max(picture.shape[0] for picture, _ in row) + _CAPTION + _GAP for row in rows]
    sheet = Image.new('RGB', (len(rows[0]) * width + _GAP, sum(heights) + _GAP), 'white')
    draw = ImageDraw.Draw(sheet)
    font = label_font(_CAPTION - 6)
    top = _GAP
    for row, height in zip(rows, heights, strict=True):
        for column, (picture, text) in enumerate(row):
            caption = printable(text)  # a line break cannot be measured
            left = _GAP + column * width
            sheet.paste(Image.fromarray(picture), (left, top))
            while font.getlength(caption) > width - _GAP:
                caption = caption[:-1]
            draw.text((left, top + picture.shape[0] + 1), caption, font=font, fill='black')
        top += height
    return sheet


def _draw_map(rgb: np.ndarray, seg_map: Any, predictor: Style, opacity: float) -> np.ndarray:
    height, width = rgb.shape[:2]
    if isinstance(seg_map, np.ndarray):
        seg_map = resize_classes(seg_map, height=height, width=width)
    else:
        seg_map = read_map(seg_map, height=height, width=width)
    colours, names = class_colours(predictor), predictor.classes or ()
    missing = seg_map == no_class(seg_map.dtype)
    classes = seg_map[~missing]
    seg_map = np.where(missing, 0, seg_map)
    if seg_map.max() >= len(colours):
        raise InputError(f'palette must have a colour for class {seg_map.max()}')
    pixels = np.bincount(classes)
    background = [label for label, name in enumerate(names) if _is_background(name)]
    tinted = cv2.addWeighted(rgb, 1 - opacity, colours.take(seg_map, axis=0), opacity, 0)
    untouched = missing | np.isin(seg_map, background)
    tinted[untouched] = rgb[untouched]
    picture = _Canvas(Image.fromarray(tinted))
    largest_first = np.argsort(-pixels, kind='stable').tolist()
    shown = [label for label in largest_first if pixels[label] and label not in background]
    texts = [_label(i, names[i] if names else None, None) for i in shown]
    picture.add_legend([(text, _shade(colours[i])) for i, text in zip(shown, texts, strict=True)])
    return np.asarray(picture.image)


def _draw_segments(rgb: np.ndarray, prediction: Prediction, opacity: float) -> np.ndarray:
    height, width = rgb.shape[:2]
    ids, segments = prediction['panoptic'], prediction['segments']
    scale = np.array([width / ids.shape[1], height / ids.shape[0]] * 2)
    ids = resize_classes(ids, height=height, width=width)
    largest_first = sorted(segments, key=lambda one: -one['area'])
    shades = dict(
        zip((one['id'] for one in largest_first), distinct_colours(len(segments)), strict=True)
    )
    table = np.zeros((max(shades, default=0) + 1, 3), np.uint8)
    for number, shade in shades.items():
        table[number] = shade
    tinted = cv2.addWeighted(rgb, 1 - opacity, table.take(ids, axis=0), opacity, 0)
    tinted[ids == 0] = rgb[ids == 0]
    border = np.zeros(ids.shape, bool)
    border[:, 1:] |= ids[:, 1:] != ids[:, :-1]
    border[1:] |= ids[1:] != ids[:-1]
    tinted[border] = 255
    picture = _Canvas(Image.fromarray(tinted))
    names = _segment_names(largest_first)
    for one in largest_first:
        left, top, box_width, box_height = (np.array(one['bbox']) * scale).tolist()
        position = (left + box_width / 3, top + box_height / 2) * 2
        picture.write(position, names[one['id']], _shade(shades[one['id']]))
    picture.add_legend([(names[one['id']], _shade(shades[one['id']])) for one in largest_first])
    return np.asarray(picture.image)


def _segment_names(segments: Sequence[dict[str, Any]]) -> dict[int, str]:
    """Return the name of each segment by its id; segments of the same class are numbered."""
    labels = [one['label'] for one in segments]
    names, seen = {}, dict.fromkeys(labels, 0)
    for one in segments:
        name = _label(one['label'], one['class'], None)
        seen[one['label']] += 1
        several = labels.count(one['label']) > 1
        names[one['id']] = f'{name} {seen[one["label"]]}' if several else name
    return names


def _draw_instances(
    rgb: np.ndarray,
    prediction: Prediction,
    predictor: Style,
    size: tuple[int, int],
    opacity: float,
) -> np.ndarray:
    height, width = rgb.shape[:2]
    labels = prediction['labels']
    if 'masks' in prediction:  # instances of one class overlap
        shades = [_shade(colour) for colour in distinct_colours(len(labels))]
        for mask, shade in zip(prediction['masks'], shades, strict=True):
            inside = decode_mask(mask, height=height, width=width)
            rgb[inside] = np.round((1 - opacity) * rgb[inside] + opacity * np.array(shade))
    else:
        colours = class_colours(predictor)
        shades = [_shade(colours[label]) for label in labels]
    picture = _Canvas(Image.fromarray(rgb))
    factors = np.tile([width / size[0], height / size[1]], 2)
    boxes = (np.array(prediction['boxes']).reshape(-1, 4) * factors).tolist()
    picture.draw_boxes(boxes, shades)
    # Box lines do not cross labels. Boxes with the highest scores get their labels first.
    scores = prediction['scores'] if 'scores' in prediction else [None] * len(boxes)
    for i in sorted(range(len(boxes)), key=lambda i: -(scores[i] or 0)):
        text = _label(labels[i], prediction['classes'][i], scores[i])
        picture.write(boxes[i], text, shades[i])
    return np.asarray(picture.image)


def _label(label: int, name: str | None, score: float | None) -> str:
    text = str(label) if name is None or not can_draw(name) else name
    return text if score is None else f'{text} {score:.2f}'


def _shade(colour: np.ndarray) -> Colour:
    return tuple(colour.tolist())


def _ink(shade: Colour) -> Colour:
    """Return black or white for text on a background colour, by its luma."""
    luma = 0.299 * shade[0] + 0.587 * shade[1] + 0.114 * shade[2]
    return (0, 0, 0) if luma > 127 else (255, 255, 255)


def label_font(size: float) -> ImageFont.FreeTypeFont:
    """Load DejaVu Sans at a size in px: Latin, Greek and Cyrillic; see :func:`can_draw`."""
    return ImageFont.truetype(_font_file(), size)


def can_draw(name: str) -> bool:
    """``True`` if :func:`label_font` has the letters of a name; it lacks Chinese, for example.

    Pictures show other classes by number.
    """
    return all(ord(letter) in _letters() for letter in name)


def _font_file() -> str:
    """Return a font file of matplotlib, which mmengine requires; Pillow's own font is ASCII."""
    from matplotlib import get_data_path

    return os.path.join(get_data_path(), 'fonts', 'ttf', 'DejaVuSans.ttf')


@functools.cache
def _letters() -> frozenset[int]:
    from matplotlib.ft2font import FT2Font

    return frozenset(FT2Font(_font_file()).get_charmap())


# Cached, because boxes share few labels and drawing letters is the slowest step.
@functools.lru_cache(maxsize=1024)
def _write(size: float, text: str, shade: Colour) -> Image.Image:
    """Draw a text in letters of ``size`` px on a background colour."""
    font = label_font(size)
    _, _, right, bottom = font.getbbox(text)
    written = Image.new('RGB', (math.ceil(right) + 1, math.ceil(bottom) + 1), shade)
    ImageDraw.Draw(written).text((0, 0), text, font=font, fill=_ink(shade))
    return written


class _Canvas:
    """A picture with a font and a line width that fit its size."""

    def __init__(self, image: Image.Image) -> None:
        self.image = image
        self._draw = ImageDraw.Draw(image)
        self._is_written = np.zeros((image.height, image.width), bool)
        self._font = label_font(max(10, round((image.height * image.width) ** 0.5 / 40)))

    def draw_boxes(self, boxes: Sequence[Sequence[float]], shades: Sequence[Colour]) -> None:
        """Draw lines with black or white margins, which show on an image of the line's colour."""
        line = max(1, round(min(self.image.size) / 240))
        margin = max(1, line // 2)
        for (left, top, right, bottom), shade in zip(boxes, shades, strict=True):
            outer = (left - margin, top - margin, right + margin, bottom + margin)
            self._draw.rectangle(outer, outline=_ink(shade), width=line + 2 * margin)
        for box, shade in zip(boxes, shades, strict=True):
            self._draw.rectangle(tuple(box), outline=shade, width=line)

    def title_font(self, text: str) -> ImageFont.FreeTypeFont:
        """Return the font for a picture's only text: twice the size of box labels if it fits."""
        size, width = 2 * self._font.size, self._font.getlength(text) / self._font.size
        return label_font(max(10, int(min(size, self.image.width / width))))

    def write(
        self,
        box: Sequence[float],
        text: str,
        shade: Colour,
        *,
        font: ImageFont.FreeTypeFont | None = None,
    ) -> None:
        """Write above a box, at its top or at its bottom, wherever there is no other text yet.

        A text that is wider than the picture loses its end.
        """
        size = (font or self._font).size
        written = _write(size, text, shade)
        while written.width > self.image.width:
            text = text[:-1]
            written = _write(size, text, shade)
        right, bottom = written.width - 1, written.height - 1
        left = round(max(0, min(box[0], self.image.width - written.width)))
        # Above the box, inside at its top, inside at its bottom.
        for top in map(round, (box[1] - bottom, max(0, box[1]), box[3] - bottom)):
            area = slice(top, top + bottom), slice(left, left + right)
            if top >= 0 and not self._is_written[area].any():
                self._is_written[area] = True
                self.image.paste(written, (left, top))
                return

    def add_legend(self, entries: Sequence[tuple[str, Colour]]) -> None:
        """Add a strip below the picture with the names of the first entries, in rows.

        The strip is at most half as high as the picture. It is left out if a name is too wide.
        """
        width, height = self.image.size
        size = max(12, round((height * width) ** 0.5 / LEGEND))
        font, line = label_font(size), round(1.5 * size)
        rows: list[list[tuple[str, Colour, int]]] = []
        right = width
        for name, shade in entries:
            needed = line + math.ceil(font.getlength(name)) + size // 2
            if needed > width:
                return
            if right + needed > width:
                rows.append([])
                right = 0
            rows[-1].append((name, shade, right))
            right += needed
        del rows[height // 2 // line :]
        if not rows:
            return
        picture = Image.new('RGB', (width, height + len(rows) * line), 'white')
        picture.paste(self.image)
        draw = ImageDraw.Draw(picture)
        for row, names in enumerate(rows):
            middle = height + (row + 0.5) * line
            for name, shade, left in names:
                square = (left + 0.2 * size, middle - 0.4 * size)
                opposite = (left + size, middle + 0.4 * size)
                draw.rectangle((*square, *opposite), fill=shade, outline='black')
                draw.text((left + line, middle), name, font=font, fill='black', anchor='lm')
        self.image = picture
