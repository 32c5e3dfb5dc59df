"""Renaming of a whole EoMT from its authors' or transformers' names to those of this package."""

import re
from collections.abc import Mapping

from torch import Tensor

from ..report import CheckpointError

# A buffer that only EoMT's head has: it identifies the model and its head.
_MARK = 'attn_mask_probs'
# Mean and deviation of the pixels, and weights of the loss, which only the authors' code uses.
_NOT_USED = re.compile(r'(encoder\.pixel_(mean|std)|criterion\.empty_weight)$')
_HEAD = re.compile(r'(q|class_head|mask_head|upscale)\.|attn_mask_probs$')
_TRANSFORMERS_HEAD = (
    (r'^query\.', 'q.'),
    (r'^class_predictor\.', 'class_head.'),
    (r'^mask_head\.fc([123])\.', lambda match: f'mask_head.{2 * int(match[1]) - 2}.'),
    (r'^upscale_block\.block\.(\d+)\.', r'upscale.\1.'),
    (r'^(upscale\.\d+)\.layernorm2d\.', r'\1.norm.'),
)
_DELTA = (
    'these are differences from the weights of DINOv3, which Meta provides on request only: add'
    " both with EoMT's own code, save the sum, and load it"
)


def rename_eomt(
    weights: Mapping[str, Tensor], wanted: Mapping[str, Tensor], trunk: str
) -> Mapping[str, Tensor]:
    """Rename an EoMT of its authors or of transformers for a model of this package.

    Weights of the trunk keep their names, under the prefix ``trunk``, to be converted later.

    Args:
        weights: Weights by name.
        wanted: Weights of the model by name.
        trunk: Prefix of the model's trunk, such as ``'backbone.'``.

    Returns:
        The renamed weights, or ``weights`` itself if they or the model are of another kind.

    Raises:
        CheckpointError: The weights are stored as differences from DINOv3's.
    """
    heads = [key.removesuffix(_MARK) for key in wanted if key.endswith(_MARK)]
    if len(heads) != 1:
        return weights
    stripped = {key.removeprefix('network.'): value for key, value in weights.items()}
    if 'q.weight' in stripped and any(key.startswith('encoder.backbone.') for key in stripped):
        if any(key.startswith('encoder.backbone.patch_embed.register') for key in stripped):
            raise CheckpointError(_DELTA)
    elif 'query.weight' in stripped and 'class_predictor.weight' in stripped:
        stripped = {_of_transformers(key): value for key, value in stripped.items()}
    else:
        return weights
    return {
        f'{heads[0] if _HEAD.match(key) else trunk}{key.removeprefix("encoder.backbone.")}': value
        for key, value in stripped.items()
        if not _NOT_USED.match(key)
    }


def _of_transformers(key: str) -> str:
    for pattern, replacement in _TRANSFORMERS_HEAD:
        key = re.sub(pattern, replacement, key)
    return key
