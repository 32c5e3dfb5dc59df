"""The configs that are compared. A new variant is a config and a line here."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mmengine.config import Config

from cpvt_backbones.toolboxes import READ_KEYS

CONFIGS = Path(__file__).resolve().parent / 'configs'


class Variant(NamedTuple):
    """A classifier of the comparison; its config is ``configs/classify/<name>_imagenette.py``."""

    label: str  # in the report
    # 1: the main results, with --seeds; 2: the other claims, 3: the rest, with --other-seeds. Lower
    # numbers run first.
    priority: int
    # Relative to the config's, each tried on the first seed; all seeds use the best one at the
    # training size.
    rate_factors: Sequence[float] = (1.0,)


# In the order of the report.
VARIANTS = {
    'none': Variant('no encoding', 1),
    'sincos': Variant('sin-cos', 1),
    'learned': Variant('learned table', 1, rate_factors=(0.5, 1.0, 2.0)),
    'relative': Variant('relative, K = 8', 2),
    'peg-0': Variant('PEG at 0', 1),
    'peg-0-5': Variant('PEG at 0-5', 1),
    'none-gap': Variant('no encoding, GAP', 3),
    'learned-gap': Variant('learned table, GAP', 2),
    'peg-0-gap': Variant('PEG at 0, GAP', 3),
    'peg-0-5-gap': Variant('PEG at 0-5, GAP', 1),
    'rope': Variant('RoPE, axial', 2),
    'rope-mixed': Variant('RoPE, mixed', 3),
    'rope-dinov3': Variant("RoPE, DINOv3's, rescaled", 3),
    'rope-peg-0-5': Variant('RoPE + PEG at 0-5', 2),
    'peg-0-5-gap-distilled': Variant('PEG at 0-5, GAP, distilled', 2),
    'peg-before': Variant('PEG at -1', 2),
    'peg-before-k27': Variant('PEG at -1, k = 27', 2),
    'peg-3': Variant('PEG at 3', 2),
    'peg-0-x4': Variant('four layers at 0', 2),
    'learned-peg-0': Variant('learned table + PEG at 0', 2),
    'peg-0-qk': Variant('PEG at 0, Q and K only', 2),
    'peg-0-frozen': Variant('PEG at 0, frozen random', 2),
    'conv1x1-x12': Variant('twelve 1 x 1 layers', 2),
    'peg-0-unpadded': Variant('PEG at 0, no zero padding', 2),
}
DATA_SETS = {
    'imagenette': [112, 128, 160, 192, 224],
    'tiny-imagenet': [32, 40, 48, 56, 64],
}
"""Data sets of the classifiers, with the sides of their test images in px; the first one is
that of the training.
"""

CURVES = ('none', 'sincos', 'learned', 'peg-0-5', 'rope')
"""Variants that are drawn against image size."""

ENCODINGS = {'peg': 'peg-0-5-gap', 'learned': 'learned-gap'}
"""Encodings of the dense transfer, with the variant that provides the pretrained weights."""

TASKS = {'semantic-fpn': 'camvid', 'retinanet': 'bccd'}
"""Tasks of the dense transfer and their data sets."""


def encoding_of(variant: str) -> str:
    """Key of :data:`benchmarks.plots.ENCODINGS` for a variant."""
    if variant.startswith('conv1x1') or variant == 'relative':
        return 'other'
    if variant in ('none', 'none-gap', 'sincos'):
        return variant.removesuffix('-gap')
    has_peg = 'peg' in variant
    if variant.startswith('learned'):
        return 'table+peg' if has_peg else 'table'
    if variant.startswith('rope'):
        return 'peg+rope' if has_peg else 'rope'
    return 'peg'


def classify_config(variant: str) -> Path:
    """The config of a variant."""
    return CONFIGS / 'classify' / f'{variant}_imagenette.py'


def data_options(data_set: str) -> dict[str, Any]:
    """What a data set changes in every variant's config, which is for Imagenette."""
    file = CONFIGS / '_base_' / f'{data_set}.py'
    options = Config.fromfile(file).to_dict() if file.exists() else {}
    return {key: value for key, value in options.items() if key in READ_KEYS}


def transfer_config(task: str, encoding: str) -> Path:
    """The config of a task with an encoding."""
    return CONFIGS / 'transfer' / f'{task}_{encoding}_{TASKS[task]}.py'
