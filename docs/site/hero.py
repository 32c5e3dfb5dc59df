"""The first picture of README and site: what padding changes in the prediction of a segmentor.

A photograph at three sizes lies in a test batch. mmsegmentation's data preprocessor pads it, and
this package's predicts each size by itself. Pixels whose class is not the one that the image has
alone are yellow. The padding grows from frame to frame. Lengths are px of the shown picture, from
its upper left corner.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cards import overlay, spots
from example_images import SEGMENTOR, STREET
from matplotlib import patheffects
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from mmengine.registry import MODELS
from mmseg.structures import SegDataSample
from PIL import Image

from cpvt_backbones.analysis.complexity import build_model
from cpvt_backbones.checkpoints import load_weights
from cpvt_backbones.toolboxes import read_config
from cpvt_backbones.weights import find_shipped

Size = tuple[int, int]
POINTS = 0.72  # of a px: the figure has 100 px an inch
# One picture serves light and dark pages.
GROUND, INK, SOFT = '#171b22', '#e6e9ee', '#b4bac4'
CHANGED, KEPT = '#ffe600', '#7ee2a8'
QUESTION = 'Does padding change the prediction?'
REMARK = 'Yellow: another class than the image has alone. Hatched: padding. Same weights.'
# Of each row or column: its name, its data preprocessor, and how that predicts.
METHODS = (
    ('mmsegmentation', 'SegDataPreProcessor', 'one padded batch'),
    ('cpvt_backbones', 'ValidSizesSegDataPreProcessor', 'one size at a time'),
)
# Share of the padding, and how long it is shown in ms. The first frame is the still.
FRAMES = ((1, 3500), (0, 1500), (0.25, 700), (0.5, 700), (0.75, 700), (1, 3500))


@dataclass(frozen=True)
class View:
    """A part of the photograph (x1, y1, x2, y2 in px), scaled to ``size``, (width, height)."""

    part: tuple[int, int, int, int]
    size: Size

    @property
    def name(self) -> str:
        """Its size."""
        return '{} x {} px'.format(*self.size)

    @cache  # noqa: B019 (views are constants)
    def pixels(self) -> np.ndarray:
        """(H, W, 3), RGB."""
        part = Image.open(STREET).crop(self.part)
        return np.asarray(part.resize(self.size, Image.Resampling.BICUBIC))

    def padded(self, padding: float) -> Size:
        """Its (width, height) with a share of the padding to ``BATCH``."""
        width, height = (
            round(own + padding * (full - own)) for own, full in zip(self.size, BATCH, strict=True)
        )
        return width, height


VIEWS = (
    View((112, 0, 1024, 684), (560, 420)),
    View((190, 0, 630, 684), (347, 539)),
    View((0, 300, 1024, 684), (720, 270)),
)
BATCH = (720, 539)  # px, (width, height) of the batch that holds them


class Segmentors:
    """The shipped segmentor in mmsegmentation as it is, and with this package's parts."""

    def __init__(self) -> None:
        shipped = find_shipped(SEGMENTOR)
        self.cfg = read_config(shipped.config_file)
        self.plain, self.ours = (build_model(self.cfg) for _ in METHODS)
        for model in (self.plain, self.ours):
            load_weights(model, SEGMENTOR)
        self.names, palette = (shipped.dataset_meta[key] for key in ('classes', 'palette'))
        self.palette = np.array(palette, np.uint8)

    def predict(
        self, model: Any, padded_by: str, views: Sequence[View], size: Size | None = None
    ) -> list[np.ndarray]:
        """The classes of the pixels of images, padded by a data preprocessor to ``size``."""
        options = dict(self.cfg.model.data_preprocessor, type=padded_by, _scope_='mmseg')
        if size is not None:
            options['test_cfg'] = dict(size=size[::-1])
        model.data_preprocessor = MODELS.build(options)
        shapes = [view.pixels().shape[:2] for view in views]
        samples = [SegDataSample(metainfo=dict(img_shape=x, ori_shape=x)) for x in shapes]
        images = [torch.tensor(view.pixels()[..., ::-1].copy()).permute(2, 0, 1) for view in views]
        with torch.no_grad():
            found = model.test_step(dict(inputs=images, data_samples=samples))
        return [sample.pred_sem_seg.data[0].numpy() for sample in found]

    @cache  # noqa: B019 (one of them in a process)
    def classes(self, padding: float) -> tuple[list[np.ndarray], ...]:
        """The classes of each view with this share of the padding, by method."""
        # mmsegmentation's refuses images of several sizes in a test, so it gets them one by one.
        plain, sized = (preprocessor for _, preprocessor, _ in METHODS)
        peer = [self.predict(self.plain, plain, [view], view.padded(padding))[0] for view in VIEWS]
        return peer, self.predict(self.ours, sized, VIEWS)

    def changed(self, padding: float) -> tuple[list[np.ndarray], ...]:
        """Where a class is not the one that mmsegmentation's model gives to the image alone."""
        alone, _ = self.classes(0)
        return tuple(
            [one != other for one, other in zip(classes, alone, strict=True)]
            for classes in self.classes(padding)
        )


def share(changed: Sequence[np.ndarray]) -> str:
    """How many of the pixels are true: 0 % if none is."""
    count, whole = sum(int(one.sum()) for one in changed), sum(one.size for one in changed)
    return f'{100 * count / whole:.1f} %' if count else '0 %'


class Sheet:
    """A card of ``width`` x ``height`` px that shows a share of the padding."""

    def __init__(self, width: int, height: int, model: Segmentors, padding: float) -> None:
        self.width, self.model, self.padding = width, model, padding
        self.figure = Figure(figsize=(width / 100, height / 100), facecolor=GROUND)
        self.axis = self.figure.add_axes((0, 0, 1, 1))
        self.axis.set(xlim=(0, width), ylim=(height, 0))
        self.axis.axis('off')

    @property
    def state(self) -> str:
        """What the frame shows."""
        named = {0: 'each image alone', 1: 'one batch of a test'}
        return named.get(self.padding, f'{100 * self.padding:.0f} % of the padding')

    def write(self, x: float, y: float, text: str, size: float = 13, **style: Any) -> None:
        """Write at a base line, ``size`` px high."""
        style = dict(color=INK, va='baseline') | style
        self.axis.text(x, y, text, fontsize=size * POINTS, **style)

    def verdict(self, method: int, x: float, y: float, verb: str = '', **style: Any) -> None:
        """Write how many of the pixels of all images change."""
        changed = self.model.changed(self.padding)[method]
        colour = CHANGED if any(one.any() for one in changed) else KEPT
        text = f'{share(changed)} of the pixels {verb}'.strip()
        self.write(x, y, text, 16, weight='bold', color=colour, **style)

    def panel(self, method: int, place: int, x: float, y: float, width: float) -> None:
        """Draw an image with its classes, what changes and the padding.

        x, y, width: Of the batch.
        """
        view, scale = VIEWS[place], width / BATCH[0]
        classes = self.model.classes(self.padding)[method][place]
        changed = self.model.changed(self.padding)[method][place]
        right, bottom = (scale * side for side in view.padded(self.padding))
        if method == 0:
            style = dict(facecolor='#2b313b', edgecolor='#59616d', hatch='////', linewidth=0)
            self.axis.add_patch(Rectangle((x, y), right, bottom, zorder=-1, **style))
        image = overlay(view.pixels(), classes, self.model.palette)
        image[changed] = tuple(bytes.fromhex(CHANGED[1:]))
        across, down = (scale * side for side in view.size)
        self.axis.imshow(image, extent=(x, x + across, y + down, y), aspect='auto')
        outline = [patheffects.withStroke(linewidth=2.5, foreground=GROUND)]
        for label, (column, row, radius) in spots(classes).items():
            name = self.model.names[label]
            if scale * radius < 3.7 * len(name):
                continue
            half = 4.2 * len(name)  # of the text's width
            middle = x + np.clip(scale * column, half, across - half)
            style = dict(ha='center', va='center', color='white', path_effects=outline)
            self.write(middle, y + scale * row, name, weight='bold', **style)
        caption = f'{view.name}: {share([changed])}'
        self.write(x, y + scale * BATCH[1] + 17, caption)


def draw(model: Segmentors, padding: float) -> Figure:
    """A frame for a page of about 830 px: a row a method, a column a size."""
    sheet, left, gap = Sheet(830, 590, model, padding), 16, 14
    right = sheet.width - left
    width = (right - left - 2 * gap) / 3
    sheet.write(left, 38, QUESTION, 21, weight='bold')
    sheet.write(right, 38, sheet.state, 16, ha='right')
    for method, (name, parts, way) in enumerate(METHODS):
        top = 90 + 254 * method
        sheet.write(left, top - 14, name, 16, weight='bold')
        sheet.write(left + 172, top - 14, f'{parts}: {way}', color=SOFT)
        sheet.verdict(method, right, top - 14, 'change class', ha='right')
        for place in range(len(VIEWS)):
            sheet.panel(method, place, left + place * (width + gap), top, width)
    sheet.write(left, 577, REMARK, color=SOFT)
    return sheet.figure


def draw_narrow(model: Segmentors, padding: float) -> Figure:
    """A frame for a phone: a column a method, a row a size."""
    sheet, left, gap = Sheet(358, 620, model, padding), 8, 8
    width = (sheet.width - 2 * left - gap) / 2
    sheet.write(left, 28, QUESTION, 16, weight='bold')
    sheet.write(left, 50, sheet.state[0].upper() + sheet.state[1:], 14)
    for method, (name, *_) in enumerate(METHODS):
        x = left + method * (width + gap)
        sheet.write(x, 80, name, 14, weight='bold')
        sheet.verdict(method, x, 102)
        for place in range(len(VIEWS)):
            sheet.panel(method, place, x, 114 + 152 * place, width)
    for line, text in enumerate(REMARK.split('. ', 1)):
        sheet.write(left, 590 + 19 * line, text, color=SOFT)
    return sheet.figure


def save(model: Segmentors, folder: Path) -> None:
    """Write the moving pictures, and the first frame of each for those who want no motion."""
    paddings, durations = zip(*FRAMES, strict=True)
    for name, draw_frame in (('padding', draw), ('padding_narrow', draw_narrow)):
        frames = []
        for padding in paddings:
            drawn = BytesIO()
            draw_frame(model, padding).savefig(drawn, dpi=200)
            frames.append(Image.open(drawn).convert('RGB'))
        style = dict(quality=80, method=6)
        frames[0].save(folder / f'{name}_still.webp', **style)
        moving = dict(save_all=True, append_images=frames[1:], duration=durations, loop=3)
        frames[0].save(folder / f'{name}.webp', **moving, **style)
