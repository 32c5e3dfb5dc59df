"""Random constructor arguments and image sizes: each is refused with a clear error, or gives right,
finite outputs.
"""

import math
import random
import warnings
from collections import Counter
from typing import Any

import pytest
import torch

from cpvt_backbones import CPVT, MultiScaleCPVT, PyramidCPVT

NOTHING: tuple[Any, ...] = (None, True, False, '', (), {}, b'x', object)
NUMBERS: tuple[Any, ...] = (0, -1, 2, 7, 500, 1.5, 0.0, -0.5, math.nan, math.inf)
ODD = (*NOTHING, *NUMBERS, 'last', (0,), [1, 1], {'a': 1})
ENCODINGS = ('PEG', 'Learned', 'SinCos', 'Relative', 'DecomposedRelative', 'RelativeBias', 'RoPE')
# Names of arguments, one of which a clear refusal contains.
ARGUMENTS = (
    'arch embed_dims depth depths num_heads mlp_ratio sr_ratios images img_size out_indices '
    'with_cls_token position type after_blocks kernel_size num_layers kind padding target frozen '
    'norm act bias grid clip mode temperature rescale_coords'
).split()


def some_position(rng: random.Random) -> Any:
    """A position argument, usually valid."""
    spec: dict[str, Any] = dict(type=rng.choice(ENCODINGS))
    if spec['type'] == 'PEG':
        options = dict(
            after_blocks=[(0,), (-1,), (0, 1)],
            kernel_size=[1, 3, 5],
            num_layers=[1, 2],
            kind=['depthwise', 'separable'],
            bias=[True, False],
            norm=[None, 'BN'],
            act=[None, 'ReLU'],
            padding=['zero', 'zero', 'none'],
            target=['qkv', 'qk'],
            frozen=[False, True],
        )
        spec |= {name: rng.choice(values) for name, values in options.items() if rng.random() < 0.3}
    elif spec['type'] == 'SinCos':
        spec |= dict(temperature=rng.choice([100.0, 10000.0]))
    elif spec['type'] == 'Relative':
        spec |= dict(clip=rng.choice([1, 4]))
    elif spec['type'] in ('DecomposedRelative', 'RelativeBias'):
        spec |= dict(grid=rng.choice([None, 3, (2, 5)]))
    elif spec['type'] == 'RoPE':
        spec |= dict(mode=rng.choice(['axial', 'mixed', 'dinov3', 'eva', 'pe']))
        spec |= dict(rescale_coords=rng.choice([None, 2.0]))
    if rng.random() < 0.15:
        spec[rng.choice([*spec, 'unknown'])] = rng.choice(ODD)
    return rng.choice([spec, spec, [spec], [spec, dict(type='PEG', after_blocks=(1,))], None])


def some_arguments(rng: random.Random) -> tuple[type, dict[str, Any], bool]:
    """A class, its arguments, and whether one of them is odd on purpose."""
    cls = rng.choice([CPVT, MultiScaleCPVT, PyramidCPVT])
    if cls is PyramidCPVT:
        arch: dict[str, Any] = dict(
            depths=[1, 1, 2, 1],
            embed_dims=[8, 16, 16, 32],
            num_heads=[1, 1, 2, 2],
            mlp_ratios=[2, 2, 2, 2],
            sr_ratios=rng.choice([[8, 4, 2, 1], [1, 1, 1, 1]]),
        )
        choices: dict[str, list[Any]] = dict(
            out_indices=[(0, 1, 2, 3), (3,), -1, (1, 2)],
            embed_norm_eps=[1e-5],
            with_cls_token=[False, False, True],
        )
    else:
        arch = dict(
            embed_dims=rng.choice([16, 32]), depth=rng.choice([1, 2, 3]), num_heads=2, mlp_ratio=2.0
        )
        choices = dict(
            patch_size=[8, 16] if cls is CPVT else [8, 16, 4],
            with_cls_token=[True, False],
            window_size=[None, None, 2, 5],
            global_blocks=[(), (0,)],
            layer_scale_init=[None, 1e-5],
            qkv_bias=[True, False],
        )
        if cls is CPVT:
            choices |= dict(out_indices=[-1, 0, (0, -1)], with_dist_token=[False, True])
        else:
            choices |= dict(
                source=['last', 'taps'],
                out_indices=[(0, 1, 2, 3), (1, 3), 0],
                taps=[None, (0, 0, 0, 0)],
            )
    choices |= dict(
        arch=[arch],
        img_size=[32, (24, 40)],
        in_channels=[3, 3, 1],
        position=[some_position(rng)],
        drop_rate=[0.0, 0.1],
        attn_drop_rate=[0.0, 0.1],
        drop_path_rate=[0.0, 0.2],
        norm_eps=[1e-6],
        final_norm=[True, False],
        frozen_stages=[-1, 0, 1],
        with_cp=[False, True],
        init_cfg=[None],
    )
    if cls is not MultiScaleCPVT:
        choices['out_type'] = ['featmap', 'featmap', 'cls_token', 'avg_featmap', 'raw']
    arguments = {
        name: rng.choice(values)
        for name, values in choices.items()
        if name == 'arch' or rng.random() < 0.4
    }
    odd = rng.random() < 0.5
    if odd:
        if rng.random() < 0.3:
            key = rng.choice(list(arch))
            arguments['arch'] = {**arch, key: rng.choice(ODD)}
        else:
            arguments[rng.choice(list(choices))] = rng.choice(ODD)
    return cls, arguments, odd


def verdict(
    cls: type, arguments: dict[str, Any], shape: tuple[int, ...], *, train: bool
) -> tuple[str, str]:
    """What came of one configuration: passed, refused, unclear, wrong or non-finite; and why."""
    try:
        model = cls(**arguments).train(train)
        outputs = model(torch.randn(shape))
    except (TypeError, ValueError) as error:
        text = str(error)
        named = any(name in text for name in (*arguments, *ARGUMENTS))
        clear = (named and 'got' in text) or 'has no argument' in text
        return ('refused' if clear else 'unclear'), f'{type(error).__name__}: {text}'
    except Exception as error:
        return 'unclear', f'{type(error).__name__}: {error}'
    for output in outputs:
        tensors = output if isinstance(output, tuple) else (output,)
        if not all(tensor.isfinite().all() for tensor in tensors):
            return 'non-finite', ''
    if len(outputs) != len(model.out_indices):
        return 'wrong', f'{len(outputs)} outputs for out_indices={model.out_indices}'
    shrinks = "'padding': 'none'" in str(arguments.get('position'))
    if model.out_type == 'featmap' and not shrinks:
        for index, output in enumerate(outputs):
            stride = model.out_strides[index]
            height, width = -(-shape[2] // stride), -(-shape[3] // stride)
            expected = (shape[0], model.out_channels[index], height, width)
            if tuple(output.shape) != expected:
                return 'wrong', f'shape {tuple(output.shape)} instead of {expected}'
    return 'passed', ''


def fuzz(count: int, seed: int) -> tuple[Counter[str], list[str]]:
    """Try ``count`` configurations.

    The number of each verdict, and a line for each that is not acceptable.
    """
    rng, verdicts, faults = random.Random(seed), Counter[str](), []
    for number in range(count):
        cls, arguments, odd = some_arguments(rng)
        shape = (
            rng.choice([1, 2]),
            arguments.get('in_channels', 3),
            rng.randint(1, 70),
            rng.randint(1, 70),
        )
        if not isinstance(shape[1], int) or not 0 < shape[1] < 10:
            shape = (shape[0], 3, *shape[2:])
        train = rng.random() < 0.5
        torch.manual_seed(number)
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')
            found, reason = verdict(cls, arguments, shape, train=train)
        verdicts['odd value accepted' if found == 'passed' and odd else found] += 1
        if found in ('unclear', 'wrong', 'non-finite'):
            faults.append(
                f'{number}: {found}: {cls.__name__}({arguments}) on {shape}, train={train}:'
                f' {reason}'
            )
    return verdicts, faults


@pytest.mark.parametrize(
    'count', [100, pytest.param(2000, marks=[pytest.mark.slow, pytest.mark.timeout(900)])]
)
def test_refusals_are_clear_and_outputs_are_finite(count):
    verdicts, faults = fuzz(count, seed=0)
    assert faults == []
    assert verdicts['passed'] > count / 5 and verdicts['refused'] > count / 5
