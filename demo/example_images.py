"""Example images of the page and of ``make demo``, one of each shipped model's domain.

The smear and the street are drawn here, so that their truth is known. The temple is scikit-learn's
``china.jpg`` (danielbuechele on Flickr, CC BY 2.0).
"""

from functools import cache
from typing import NamedTuple

import numpy as np
from digit_scenes import open_photo
from PIL import Image, ImageDraw, ImageFilter

from cpvt_backbones.weights import find_shipped

CLASSIFIER, DETECTOR, SEGMENTOR = (
    'cpvt_tiny_gap-imagenette',
    'retinanet_cpvt_tiny_gap-bccd',
    'semantic_fpn_cpvt_tiny_gap-camvid',
)
FINE = 2  # scenes are drawn at this factor of their size
Colour = tuple[int, ...]


class Example(NamedTuple):
    """An image (H, W, 3), RGB, the model that it is of, and its truth if it is known."""

    name: str
    model: str
    image: np.ndarray
    boxes: np.ndarray | None = None  # (N, 4), x1, y1, x2, y2 in px
    labels: np.ndarray | None = None  # (N,), of the boxes
    classes: np.ndarray | None = None  # (H, W), of the pixels


@cache
def examples() -> list[Example]:
    """The example images."""
    temple = np.asarray(open_photo('sklearn.datasets.images', 'china.jpg'))
    return [Example('Temple: class', CLASSIFIER, temple), draw_smear(), draw_street()]


class _Canvas:
    """A picture of ``size`` px and the class of each of its pixels, drawn together."""

    def __init__(self, size: tuple[int, int], colour: Colour, model: str) -> None:
        self.size, self.names = size, find_shipped(model).dataset_meta['classes']
        large = (size[0] * FINE, size[1] * FINE)
        self.image, self.index = Image.new('RGB', large, colour), Image.new('L', large)

    def polygon(self, name: str, colour: Colour, *points: tuple[float, float]) -> None:
        fine = [(x * FINE, y * FINE) for x, y in points]
        ImageDraw.Draw(self.image).polygon(fine, fill=colour)
        ImageDraw.Draw(self.index).polygon(fine, fill=self.names.index(name))

    def box(self, name: str, colour: Colour, x1: float, y1: float, x2: float, y2: float) -> None:
        self.polygon(name, colour, (x1, y1), (x2, y1), (x2, y2), (x1, y2))

    def disc(self, name: str, colour: Colour, x: float, y: float, rx: float, ry: float) -> None:
        corners = [side * FINE for side in (x - rx, y - ry, x + rx, y + ry)]
        ImageDraw.Draw(self.image).ellipse(corners, fill=colour)
        ImageDraw.Draw(self.index).ellipse(corners, fill=self.names.index(name))

    def picture(self, blur: float, noise: float, rng: np.random.Generator) -> np.ndarray:
        small = self.image.resize(self.size, Image.Resampling.LANCZOS)
        small = small.filter(ImageFilter.GaussianBlur(blur))
        grain = rng.normal(0, noise, (self.size[1], self.size[0], 1))
        return (np.asarray(small) + grain).clip(0, 255).astype(np.uint8)

    def classes(self) -> np.ndarray:
        return np.asarray(self.index.resize(self.size, Image.Resampling.NEAREST))


def draw_smear() -> Example:
    """A stained blood smear of 640 x 480 px: 22 red and two white cells."""
    rng = np.random.default_rng(0)
    canvas = _Canvas((640, 480), (226, 222, 226), DETECTOR)
    boxes, labels = [], []
    for place in range(24):
        white = place in (7, 16)
        rx = 46 if white else rng.uniform(36, 42)
        ry = rx * (1 if white else rng.uniform(0.9, 1.1))
        x = (place % 6 + 0.5) * 640 / 6 + rng.uniform(-8, 8)
        y = (place // 6 + 0.5) * 120 + rng.uniform(-12, 12)
        boxes.append([x - rx, y - ry, x + rx, y + ry])
        name = 'WBC' if white else 'RBC'
        labels.append(canvas.names.index(name))
        if white:
            canvas.disc(name, (188, 168, 206), x, y, rx, ry)
            for angle in 0.9 * np.arange(5) + rng.uniform(0, 6):
                lobe = (x + 0.45 * rx * np.cos(angle), y + 0.45 * rx * np.sin(angle))
                canvas.disc(name, (112, 82, 188), *lobe, 0.36 * rx, 0.36 * rx)
            continue
        tone, inner = int(rng.integers(-8, 8)), rx * rng.uniform(0.25, 0.5)
        canvas.disc(name, (208 + tone, 158 + tone, 154 + tone), x, y, rx, ry)
        canvas.disc(name, (222 + tone, 186 + tone, 182 + tone), x, y, inner, inner)
    image = canvas.picture(blur=1.5, noise=3, rng=rng)
    return Example('Blood: boxes', DETECTOR, image, np.array(boxes), np.array(labels))


def draw_street() -> Example:
    """A street of 480 x 360 px, seen from a car."""
    rng = np.random.default_rng(0)
    canvas = _Canvas((480, 360), (176, 188, 200), SEGMENTOR)
    for _ in range(14):
        cloud = rng.uniform((0, 0, 30, 6), (480, 110, 80, 14))
        canvas.disc('sky', (200, 206, 214), *cloud)
    canvas.image = canvas.image.filter(ImageFilter.GaussianBlur(3 * FINE))
    brown, grey = (116, 92, 80), (130, 124, 118)
    # x, top and bottom of the near edge, then of the far one; colour, windows in a row, rows.
    _facade(canvas, rng, (0, 18, 262), (110, 84, 240), brown, 3, 4)
    _facade(canvas, rng, (110, 100, 240), (180, 142, 222), grey, 3, 3)
    _facade(canvas, rng, (180, 150, 222), (204, 163, 214), brown, 2, 2)
    _facade(canvas, rng, (480, 6, 266), (380, 82, 242), grey, 3, 4)
    _facade(canvas, rng, (380, 96, 242), (318, 144, 220), brown, 3, 3)
    _facade(canvas, rng, (318, 150, 220), (296, 163, 212), grey, 2, 2)
    for x, y, size, foot in ((218, 168, 15, 212), (238, 178, 10, 208), (278, 176, 11, 208)):
        canvas.box('tree', (60, 52, 44), x - 1.5, y, x + 1.5, foot)
        for _ in range(220):
            dx, dy = rng.normal(0, size / 2, 2)
            shade = rng.uniform(0.7, 1.25)
            leaf = tuple(int(channel * shade) for channel in (62, 72, 46))
            canvas.disc('tree', leaf, x + dx, y + dy, 2, 1.6)
    edges = ((222, 212), (0, 316)), ((278, 212), (480, 312))  # of the road, far and near
    sides = (0, 262), (204, 213), (296, 212), (480, 266), (480, 330), (0, 330)
    canvas.polygon('pavement', (136, 130, 126), *sides)
    canvas.polygon('road', (96, 97, 100), *edges[0][::-1], *edges[1], (480, 360), (0, 360))
    for far, near in edges:
        kerb = (near[0], near[1] - 5), (far[0], far[1] - 0.6)
        canvas.polygon('pavement', (160, 156, 150), far, near, *kerb)
    for k in range(5):
        y = 216 + 24 * k + 4 * k * k
        canvas.box('road', (190, 190, 188), 249.5 - 0.7 * k, y, 250.5 + 0.7 * k, y + 8 + 5 * k)
    _car(canvas, 243, 216, 9, (70, 76, 92))
    _car(canvas, 312, 228, 22, (120, 34, 36))
    _car(canvas, 130, 246, 30, (62, 74, 98))
    for x, top, foot, arm in ((166, 86, 232, 22), (338, 104, 228, -22)):
        canvas.box('pole', (86, 88, 90), x - 1.5, top, x + 1.5, foot)
        lamp = (x, top), (x + arm, top - 5), (x + arm, top - 3), (x, top + 2)
        canvas.polygon('pole', (86, 88, 90), *lamp)
    image = canvas.picture(blur=0.6, noise=1, rng=rng)
    return Example('Street: map', SEGMENTOR, image, classes=canvas.classes())


def _facade(
    canvas: _Canvas,
    rng: np.random.Generator,
    near: tuple[float, float, float],
    far: tuple[float, float, float],
    colour: Colour,
    columns: int,
    rows: int,
) -> None:
    """The front of a house along the street."""

    def at(u: float, v: float) -> tuple[float, float]:
        x, top, bottom = (a + (b - a) * u for a, b in zip(near, far, strict=True))
        return x, top + (bottom - top) * v

    def patch(shade: Colour, u1: float, u2: float, v1: float, v2: float) -> None:
        canvas.polygon('building', shade, at(u1, v1), at(u2, v1), at(u2, v2), at(u1, v2))

    patch(colour, 0, 1, 0, 1)
    for row in range(rows):
        top, bottom = (row + 0.2) / rows, (row + 0.75) / rows
        ledge = tuple(int(channel * 0.86) for channel in colour)
        patch(ledge, 0, 1, bottom + 0.12 / rows, bottom + 0.2 / rows)
        for column in range(columns):
            left, right = ((column + share) / columns for share in (0.25, 0.78))
            left, right, tone = left**0.8, right**0.8, int(rng.integers(-10, 14))
            patch((196, 192, 184), left - 0.012, right + 0.012, top - 0.01, bottom + 0.015)
            patch((40 + tone, 46 + tone, 56 + tone), left, right, top, bottom)
            middle = (left + right) / 2
            patch((186, 182, 176), middle - 0.006, middle + 0.006, top, bottom)


def _car(canvas: _Canvas, x: float, y: float, side: float, colour: Colour) -> None:
    """A car from behind, 2 * ``side`` px wide."""

    def points(*pairs: tuple[float, float]) -> list[tuple[float, float]]:
        left = [(x - u * side, y + v * side) for u, v in pairs]
        return left + [(x + u * side, y + v * side) for u, v in reversed(pairs)]

    def part(shade: Colour, *pairs: tuple[float, float]) -> None:
        canvas.polygon('car', shade, *points(*pairs))

    canvas.disc('road', (58, 58, 60), x, y + 0.52 * side, 1.15 * side, 0.13 * side)
    part(colour, (1, 0.35), (1, -0.2), (0.86, -0.42), (0.62, -0.92))
    part((34, 40, 50), (0.72, -0.44), (0.54, -0.82))
    part(tuple(int(channel * 0.6) for channel in colour), (1, 0.38), (1, 0.18))
    part((220, 220, 205), (0.25, 0.13), (0.25, 0))
    for sign in (-0.76, 0.76):
        wheel = x + (sign - 0.14) * side, x + (sign + 0.14) * side
        canvas.box('car', (24, 24, 26), wheel[0], y + 0.3 * side, wheel[1], y + 0.55 * side)
        canvas.disc('car', (206, 50, 44), x + sign * side, y - 0.1 * side, 0.12 * side, 0.1 * side)
