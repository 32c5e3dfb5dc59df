"""Choices and defaults of the package, and advice on misspelt names, without torch.

``cpvt`` runs this file before it imports the package, which takes seconds. So this file imports
only the standard library.
"""

import difflib
from collections.abc import Iterable
from typing import Any

AMP_DTYPES = ('float16', 'bfloat16')
BACKBONES = ('CPVT', 'MultiScaleCPVT', 'PyramidCPVT')
DTYPES = ('auto', 'float32', 'float16', 'bfloat16')
EXPORT_FORMATS = {'onnx': '.onnx', 'torch_export': '.pt2', 'aoti': '.pt2'}
EXPORTED_SUFFIXES = ('.onnx', '.pt2')
MAX_PIXELS = 2048 * 2048
OPSET = 21  # of ONNX; the last before RoiAlign(22), which onnxruntime lacks
OVERLAP = 256  # px
READ_LIMIT = 178_956_970  # px; Pillow's default threshold for the error of a decompression bomb
RUNTIMES = ('onnxruntime', 'openvino', 'openvino-bfloat16')  # for .onnx files
SHOWN_CLASSES = 20  # in a line or table that a command prints
TARGETS = ('cpvt', 'timm', 'mmseg', 'mmpretrain')  # namings of weights
TILE_SIZE = 1024  # px
VERIFIED_BATCHES = (1, 3)
# (height, width), px: below one patch row, the usual size, and one that no stride divides.
VERIFIED_SIZES = ((17, 33), (224, 224), (333, 517))


def most_similar(
    value: Any, accepted: Iterable[Any], *, count: int = 1, cutoff: float = 0.65
) -> list[str]:
    """Find accepted names that are similar to a value, the most similar first.

    Args:
        value: The misspelt name.
        accepted: Accepted names; values that are not text are ignored.
        count: Maximum number of names.
        cutoff: Minimum similarity, 0 to 1. If no name reaches it, names that contain the value
            count as similar, if it has at least four characters.

    Returns:
        The names; case does not matter.
    """
    names = {name.lower(): name for name in accepted if isinstance(name, str)}
    text = str(value).lower()
    similar = difflib.get_close_matches(text, names, n=count, cutoff=cutoff)
    if not similar and len(text) >= 4:
        similar = [name for name in names if text in name][:count]
    return [names[one] for one in similar]


def did_you_mean(
    value: Any, accepted: Iterable[Any], *, count: int = 1, cutoff: float = 0.65
) -> str:
    """Return ``'; did you mean ...?'`` for a value similar to an accepted one, else ``''``.

    The arguments are those of :func:`most_similar`.
    """
    similar = most_similar(value, accepted, count=count, cutoff=cutoff)
    return f'; did you mean {" or ".join(map(repr, similar))}?' if similar else ''
