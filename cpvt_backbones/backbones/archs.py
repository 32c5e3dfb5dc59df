"""Named architectures, and arguments that take one value or several."""

from collections.abc import Mapping
from typing import Any

from cpvt_backbones.checks import (
    check_int,
    check_positive,
    is_int,
    is_sequence,
)
from cpvt_backbones.errors import InputError
from cpvt_backbones.plain import did_you_mean

PLAIN_ARCHS: dict[str, dict[str, Any]] = {
    # DeiT's trunk (arXiv 2012.12877, table 1): head dimension 64 throughout.
    'tiny': dict(embed_dims=192, depth=12, num_heads=3, mlp_ratio=4.0),
    'small': dict(embed_dims=384, depth=12, num_heads=6, mlp_ratio=4.0),
    'base': dict(embed_dims=768, depth=12, num_heads=12, mlp_ratio=4.0),
}

_PYRAMID: dict[str, Any] = dict(
    embed_dims=(64, 128, 320, 512),
    num_heads=(1, 2, 5, 8),
    mlp_ratios=(8.0, 8.0, 4.0, 4.0),
    sr_ratios=(8, 4, 2, 1),
)
_PVTV2: dict[str, Any] = dict(_PYRAMID, patch_kernels=(7, 3, 3, 3), mlp_kernel_size=3)
_SVT: dict[str, Any] = dict(mlp_ratios=(4.0,) * 4, sr_ratios=(8, 4, 2, 1), window_size=7)

HIERARCHICAL_ARCHS: dict[str, dict[str, Any]] = {
    # PVT (arXiv 2102.12122, table 1) and Twins-PCPVT (arXiv 2104.13840); PVT calls 'base' "Medium".
    'tiny': dict(depths=(2, 2, 2, 2), **_PYRAMID),
    'small': dict(depths=(3, 4, 6, 3), **_PYRAMID),
    'base': dict(depths=(3, 4, 18, 3), **_PYRAMID),
    'large': dict(depths=(3, 8, 27, 3), **_PYRAMID),
    # Twins-SVT (arXiv 2104.13840, table 2): windows and reduced keys alternate.
    'svt_small': dict(
        depths=(2, 2, 10, 4), embed_dims=(64, 128, 256, 512), num_heads=(2, 4, 8, 16), **_SVT
    ),
    'svt_base': dict(
        depths=(2, 2, 18, 2), embed_dims=(96, 192, 384, 768), num_heads=(3, 6, 12, 24), **_SVT
    ),
    'svt_large': dict(
        depths=(2, 2, 18, 2), embed_dims=(128, 256, 512, 1024), num_heads=(4, 8, 16, 32), **_SVT
    ),
    # PVTv2 (arXiv 2106.13797, table 1): overlapping patches, and convolutions in the MLPs.
    'pvtv2_b0': dict(_PVTV2, depths=(2, 2, 2, 2), embed_dims=(32, 64, 160, 256)),
    'pvtv2_b1': dict(_PVTV2, depths=(2, 2, 2, 2)),
    'pvtv2_b2': dict(_PVTV2, depths=(3, 4, 6, 3)),
    'pvtv2_b3': dict(_PVTV2, depths=(3, 4, 18, 3)),
    'pvtv2_b4': dict(_PVTV2, depths=(3, 8, 27, 3)),
    'pvtv2_b5': dict(_PVTV2, depths=(3, 6, 40, 3), mlp_ratios=(4.0,) * 4),
}

# Further keys that a hierarchical architecture may have, with the kind of their values.
_OPTIONAL: dict[str, Any] = dict(window_size=7, patch_kernels=(7, 3, 3, 3), mlp_kernel_size=3)

ARCHS = {'CPVT': PLAIN_ARCHS, 'MultiScaleCPVT': PLAIN_ARCHS, 'PyramidCPVT': HIERARCHICAL_ARCHS}


def list_archs() -> dict[str, tuple[str, ...]]:
    """List the names that each backbone accepts as ``arch=``.

    Examples:
        >>> from cpvt_backbones import list_archs
        >>> list_archs()['CPVT']
        ('tiny', 'small', 'base')
    """
    return {backbone: tuple(table) for backbone, table in ARCHS.items()}


def resolve_arch(arch: Any, table: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Look up an architecture by its name in ``table``, or check a dict with the same keys.

    Raises:
        ValueError: The name is unknown, or a key or value of the dict is wrong.
    """
    example = next(iter(table.values()))
    keys = list(example)
    if not isinstance(arch, Mapping):
        if not isinstance(arch, str) or arch not in table:
            raise InputError(
                f'arch must be one of {list(table)} or a dict with the keys {keys}, got {arch!r}'
                f'{did_you_mean(arch, table)}'
            )
        return dict(table[arch])
    optional = _OPTIONAL if 'depths' in example else {}
    if not set(keys) <= set(arch) <= {*keys, *optional}:
        more = f', and of {list(optional)} those that it has' if optional else ''
        raise InputError(f'arch must be a dict with the keys {keys}{more}, got {dict(arch)!r}')
    kinds = {**optional, **example}
    for key, value in arch.items():
        values = [value]
        if is_sequence(kinds[key]):
            values, count = value, len(kinds[key])
            if not is_sequence(value) or len(value) != count:
                raise InputError(
                    f'arch must give {count} numbers for {key}, one per stage, got {value!r}'
                )
        for number in values:
            (check_positive if key.startswith('mlp_ratio') else check_int)(**{key: number})
    return dict(arch)


def resolve_indices(
    name: str, indices: Any, count: int, *, allow_none: bool = False
) -> tuple[int, ...]:
    """Convert an int, or ints, in [-count, count) to non-negative indices.

    Args:
        name: Name of the argument in error messages.
        indices: The value.
        count: Number of items that can be indexed.
        allow_none: Accept an empty sequence.

    Raises:
        ValueError: ``indices`` is not accepted.
    """
    values = (indices,) if isinstance(indices, int) else indices
    accepted = f'an integer or a sequence of integers in [{-count}, {count - 1}]'
    if not is_sequence(values) or (not values and not allow_none):
        raise InputError(f'{name} must be {accepted}, got {indices!r}')
    for value in values:
        if not is_int(value) or not -count <= value < count:
            raise InputError(f'{name} must be {accepted}, got {value!r} in {indices!r}')
    return tuple(value % count for value in values)


def resolve_size(name: str, value: Any) -> tuple[int, int]:
    """Convert a side, or (height, width), in pixels to (height, width).

    Raises:
        ValueError: The value is neither; the message begins with ``name``.
    """
    pair = (value, value) if isinstance(value, int) else value
    if not is_sequence(pair) or len(pair) != 2:
        raise InputError(f'{name} must be an integer or (height, width) in pixels, got {value!r}')
    for side in pair:
        check_int(**{name: side})
    return pair[0], pair[1]
