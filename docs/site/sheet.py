"""A picture whose parts have places in px of the shown picture, from its upper left corner."""

from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

from cards import THEMES
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

POINTS = 0.72  # of a px: the figure has 100 px an inch


@dataclass
class Sheet:
    """A card of ``width`` x ``height`` px in the colours of a theme."""

    width: int
    height: int
    theme: str

    def __post_init__(self) -> None:
        self.ground, self.ink, *_ = THEMES[self.theme]
        size = (self.width / 100, self.height / 100)
        self.figure = Figure(figsize=size, facecolor=self.ground)

    def axis(self, x: float, y: float, width: float, height: float) -> Axes:
        """Axes at a place of the sheet."""
        bottom = self.height - y - height
        place = (x / self.width, bottom / self.height, width / self.width, height / self.height)
        return self.figure.add_axes(place)

    def write(self, x: float, y: float, text: str, size: float = 13, **style: Any) -> None:
        """Write at a base line, ``size`` px high."""
        style = dict(color=self.ink, va='baseline') | style
        place = (x / self.width, 1 - y / self.height)
        self.figure.text(*place, text, fontsize=size * POINTS, **style)


def save(draw: Callable[[str], Figure], path: Path) -> None:
    """Write a picture for both themes, with ``_dark`` at the end of the second name."""
    for theme, ending in (('light', ''), ('dark', '_dark')):
        drawn = BytesIO()
        draw(theme).savefig(drawn, dpi=200)
        picture = Image.open(drawn).convert('RGB')
        picture.save(path.with_name(f'{path.name}{ending}.webp'), quality=85, method=6)
