"""Example images, made of what installed packages have: no download.

The coins are scikit-image's (Brooklyn Museum, no known copyright restrictions), the temple is
scikit-learn's ``china.jpg`` (danielbuechele on Flickr, CC BY 2.0).
"""

import io
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

from digit_scenes import compose_scene, open_photo
from PIL import Image
from shipped_models import DETECTOR, SEGMENTOR, blood_smear


class Example(NamedTuple):
    """An image, what it shows, and the model that fits it; none: the one that is chosen."""

    make: Callable[[], Image.Image]
    about: str
    model: str | None

    def jpeg(self) -> bytes:
        """Its file."""
        return _encode(self.make)


@cache
def _encode(make: Callable[[], Image.Image]) -> bytes:
    stream = io.BytesIO()
    make().save(stream, format='JPEG', quality=92)
    return stream.getvalue()


def _temple() -> Image.Image:
    return open_photo('sklearn.datasets.images', 'china.jpg')


def _tower() -> Image.Image:
    return _temple().crop((70, 10, 350, 380))


def _digits() -> Image.Image:
    return Image.fromarray(compose_scene(split='heldout', height=240, width=320, index=0).image)


EXAMPLES = {
    'cells': Example(blood_smear, '24 coins, coloured as a blood smear', DETECTOR),
    'temple': Example(_temple, 'a temple and its trees', SEGMENTOR),
    'tower': Example(_tower, 'the tower of the temple', 'cpvt_tiny_gap-imagenette'),
    'digits': Example(_digits, 'digits on a photograph, for the models of make demo', None),
}
