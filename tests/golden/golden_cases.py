"""The cases whose outputs are recorded, the weights and images they run on, and the numbers kept of
an output.

Weights are functions of a parameter's name and shape alone, so the order in which a model builds
its parts does not matter. They are uniform random numbers, whose generation involves no
transcendental function: every processor makes the same ones. Matrices are scaled by their fan-in
and norms are near 1, so that rounding errors are not amplified.
"""

import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from mmengine.utils import import_modules_from_strings
from torch import Tensor, nn

from cpvt_backbones import CPVT, MultiScaleCPVT, PyramidCPVT, list_archs

ROOT = Path(__file__).resolve().parents[2]
SMALL, LARGE = (50, 37), (33, 49)
"""Height and width in px of the images of small models and of registered sizes."""

Outputs = dict[str, np.ndarray]
Case = Callable[[Path], Outputs]
"""Runs a model; takes a folder for temporary files."""

CASES: dict[str, Case] = {}

COLUMN = dict(embed_dims=24, depth=4, num_heads=2, mlp_ratio=2.0)
PYRAMID = dict(
    depths=(2, 1, 2, 2),
    embed_dims=(8, 12, 16, 24),
    num_heads=(1, 2, 2, 3),
    mlp_ratios=(2.0,) * 4,
    sr_ratios=(4, 2, 2, 1),
)
SVT = {**PYRAMID, 'window_size': 3}
PEG = dict(type='PEG', after_blocks=(0, 1))


# -- weights and images
# ----------------------------------------------------------------------------------------------


def uniform(name: str, *shape: int) -> np.ndarray:
    """Numbers of mean 0 and variance 1 that depend on the name and the shape alone."""
    rng = np.random.RandomState(
        zlib.crc32(name.encode())
    )  # its stream is frozen, unlike default_rng's
    return (rng.random_sample(shape) - 0.5) * 12**0.5


def fill(model: nn.Module) -> nn.Module:
    """Give every parameter and buffer its weights, and set the model to evaluation."""
    with torch.no_grad():
        for name, value in model.state_dict().items():
            if not value.is_floating_point():
                continue
            noise = uniform(name, *value.shape)
            if name.endswith('running_var'):
                noise = np.exp2(np.round(noise))
            elif value.dim() > 1 and name.endswith('weight'):
                noise /= value[0].numel() ** 0.5
            elif name.endswith(('weight', 'gamma')):
                noise = 1 + 0.2 * noise
            else:
                noise *= 0.3
            value.copy_(torch.from_numpy(noise))
    return model.eval()


def images(size: tuple[int, int], batch: int = 2) -> Tensor:
    """Normalised images, noise of two scales."""
    height, width = size
    fine = uniform(f'fine {size}', batch, 3, height, width)
    coarse = uniform(f'coarse {size}', batch, 3, -(-height // 16), -(-width // 16))
    coarse = coarse.repeat(16, axis=2).repeat(16, axis=3)[:, :, :height, :width]
    return torch.from_numpy(0.5 * fine + coarse).float()


def pixels(size: tuple[int, int], batch: int = 2) -> Tensor:
    """The same as uint8."""
    return (images(size, batch) * 40 + 120).clamp(0, 255).round().to(torch.uint8)


# -- cases
# --------------------------------------------------------------------------------------------------


def name_outputs(outputs: Any, prefix: str = '') -> Iterator[tuple[str, np.ndarray]]:
    """Tensors of nested tuples, each with a name that says where it was."""
    if isinstance(outputs, Tensor):
        yield prefix, outputs.detach().numpy()
    else:
        for index, output in enumerate(outputs):
            yield from name_outputs(output, f'{prefix}[{index}]')


def add_backbone(
    name: str, build: Callable[[], nn.Module], *, size: tuple[int, int] = SMALL, **forward: Any
) -> None:
    """A case that runs a backbone on one batch."""

    def run(_: Path) -> Outputs:
        with torch.no_grad():
            return dict(name_outputs(fill(build())(images(size), **forward)))

    assert name not in CASES, name
    CASES[name] = run


def add_registered_sizes() -> None:
    for cls in (CPVT, PyramidCPVT, MultiScaleCPVT):
        for arch in list_archs()[cls.__name__]:
            if arch.startswith('pvtv2'):  # a smaller case is below
                continue
            add_backbone(
                f'{cls.__name__} {arch}', lambda cls=cls, arch=arch: cls(arch=arch), size=LARGE
            )


def add_variants() -> None:
    variants: dict[str, tuple[type[nn.Module], dict[str, Any]]] = {
        'every map': (CPVT, dict(out_indices=(0, 1, 2, -1))),
        'two blocks built': (CPVT, dict(out_indices=1)),
        'GAP': (CPVT, dict(with_cls_token=False, out_type='avg_featmap')),
        'GAP, map': (CPVT, dict(with_cls_token=False)),
        'class token': (CPVT, dict(out_type='cls_token')),
        'distillation token': (CPVT, dict(out_type='cls_token', with_dist_token=True)),
        'raw, distillation token': (CPVT, dict(out_type='raw', with_dist_token=True)),
        'windows': (CPVT, dict(patch_size=8, window_size=3, global_blocks=(1,))),
        'windows, GAP': (
            CPVT,
            dict(patch_size=8, window_size=3, global_blocks=(-1,), with_cls_token=False),
        ),
        'layer scale': (CPVT, dict(layer_scale_init=0.1, qkv_bias=False)),
        'no final norm': (CPVT, dict(final_norm=False, patch_size=7, norm_eps=1e-3)),
        'last': (MultiScaleCPVT, dict()),
        'last, class token': (MultiScaleCPVT, dict(with_cls_token=True)),
        'last, patch 8': (MultiScaleCPVT, dict(patch_size=8, out_indices=(1, -1))),
        'last, patch 32': (MultiScaleCPVT, dict(patch_size=32)),
        'last, windows': (MultiScaleCPVT, dict(patch_size=4, window_size=4, global_blocks=(1, 3))),
        'taps': (MultiScaleCPVT, dict(source='taps')),
        'taps, patch 8': (
            MultiScaleCPVT,
            dict(source='taps', taps=(0, 1, 1, 3), patch_size=8, final_norm=False),
        ),
        'map': (PyramidCPVT, dict()),
        'map, norm': (PyramidCPVT, dict(final_norm=True, out_indices=(-1, 0))),
        'map, class token': (
            PyramidCPVT,
            dict(with_cls_token=True, norm_eps=1e-3, embed_norm_eps=1e-6),
        ),
        'pyramid, class token': (
            PyramidCPVT,
            dict(with_cls_token=True, out_type='cls_token', out_indices=-1),
        ),
        'pyramid, GAP': (PyramidCPVT, dict(out_type='avg_featmap', out_indices=-1)),
        'pyramid, raw': (PyramidCPVT, dict(with_cls_token=True, out_type='raw', qkv_bias=False)),
        'two stages built': (PyramidCPVT, dict(out_indices=1)),
        'windows and reduced keys': (PyramidCPVT, dict(arch=SVT, norm_after_stage=True)),
        'overlapping patches': (
            PyramidCPVT,
            dict(
                arch={**PYRAMID, 'patch_kernels': (7, 3, 3, 3), 'mlp_kernel_size': 3},
                position=None,
                with_cls_token=True,
            ),
        ),
        'windows that attend to padding': (
            PyramidCPVT,
            dict(arch=SVT, mask_window_padding=False),
        ),
    }
    for name, (cls, options) in variants.items():
        arch = PYRAMID if cls is PyramidCPVT else COLUMN
        add_backbone(
            f'{cls.__name__}, {name}',
            lambda cls=cls, options=options, arch=arch: cls(**{'arch': arch, **options}),
        )
    for cls, arch in ((CPVT, COLUMN), (MultiScaleCPVT, COLUMN), (PyramidCPVT, PYRAMID)):
        add_backbone(
            f'{cls.__name__}, padded batch',
            lambda cls=cls, arch=arch: cls(arch=arch),
            valid_sizes=[(50, 20), (33, 37)],
        )


def add_encodings() -> None:
    encodings: dict[str, Any] = {
        'none': None,
        'PEG before': dict(type='PEG', after_blocks=(-1,)),
        'PEG before and after': dict(type='PEG', after_blocks=(-1, 0)),
        'PEG on queries and keys': dict(type='PEG', after_blocks=(-1,), target='qk'),
        'PEG, kernel 5': dict(PEG, kernel_size=5),
        'PEG, kernel 27': dict(type='PEG', after_blocks=(-1,), kernel_size=27),
        'PEG, two layers': dict(PEG, num_layers=2),
        'PEG, separable': dict(PEG, kind='separable'),
        'PEG, no bias': dict(PEG, bias=False),
        'PEG, BN and ReLU': dict(PEG, norm='BN', act='ReLU', bias=False),
        'PEG, GELU, two layers': dict(PEG, act='GELU', num_layers=2),
        'PEG, frozen': dict(PEG, frozen=True),
        'Learned': dict(type='Learned'),
        'Learned, as PVT': dict(type='Learned', interpolation='bilinear', antialias=False),
        'SinCos': dict(type='SinCos'),
        'SinCos, temperature': dict(type='SinCos', temperature=100.0),
        'Learned and PEG': [dict(type='Learned'), PEG],
        **{
            f'RoPE, {mode}': dict(type='RoPE', mode=mode)
            for mode in ('axial', 'mixed', 'dinov3', 'eva')
        },
        'Learned, RoPE and PEG': [dict(type='Learned'), dict(type='RoPE', temperature=50.0), PEG],
        'PEG twice and SinCos': [
            PEG,
            dict(type='SinCos'),
            dict(type='PEG', after_blocks=(-1,), target='qk'),
        ],
    }
    column_only: dict[str, Any] = {
        'PEG, unpadded': dict(type='PEG', after_blocks=(0,), padding='none'),
        'Relative': dict(type='Relative'),
        'Relative, clip 1': dict(type='Relative', clip=1),
        'Relative and PEG': [dict(type='Relative', clip=2), PEG],
    }
    for name, position in (encodings | column_only).items():
        add_backbone(
            f'column, {name}',
            lambda position=position: CPVT(
                arch=COLUMN, img_size=32, patch_size=8, position=position, out_type='raw'
            ),
        )
    for name, position in encodings.items():
        first = _in_first_block(position)  # the second stage has one block
        # A rotary encoding needs heads whose widths are multiples of 4.
        arch = {**PYRAMID, 'num_heads': (1, 3, 2, 3)} if 'RoPE' in name else PYRAMID
        add_backbone(
            f'pyramid, {name}',
            lambda position=first, arch=arch: PyramidCPVT(
                arch=arch, img_size=64, position=position
            ),
        )
    for name in ('PEG, BN and ReLU', 'PEG, two layers', 'PEG before and after'):
        add_backbone(
            f'column, {name}, fused',
            lambda position=encodings[name]: fill(
                CPVT(arch=COLUMN, patch_size=8, position=position)
            ).fuse(),
        )


def _in_first_block(position: Any) -> Any:
    if isinstance(position, Mapping):
        return {key: (0,) if value == (0, 1) else value for key, value in position.items()}
    return position and [_in_first_block(one) for one in position]


def add_loaded_tables() -> None:
    """Learned tables of a checkpoint for another image size, resized on loading."""
    models = {
        'column': (CPVT, dict(arch=COLUMN, patch_size=8), dict(type='Learned')),
        'pyramid': (
            PyramidCPVT,
            dict(arch=PYRAMID),
            dict(type='Learned', interpolation='bilinear', antialias=False),
        ),
    }
    for name, (cls, options, position) in models.items():

        def run(
            _: Path, cls: Any = cls, options: Any = options, position: Any = position
        ) -> Outputs:
            trained = fill(cls(img_size=64, position=position, **options))
            model = cls(img_size=96, position=position, **options).eval()
            model.load_state_dict(trained.state_dict())
            with torch.no_grad():
                return dict(name_outputs(model(images((96, 96)))))

        CASES[f'{name}, table of another size loaded'] = run


SHIPPED = {
    'classifier': ('imagenette/cpvt-tiny-gap_imagenette.py', 'cpvt_tiny_gap-imagenette'),
    'segmentor': (
        'camvid/semantic-fpn_cpvt-tiny-gap_camvid.py',
        'semantic_fpn_cpvt_tiny_gap-camvid',
    ),
    'detector': ('bccd/retinanet_cpvt-tiny-gap_bccd.py', 'retinanet_cpvt_tiny_gap-bccd'),
}
SHIPPED_SIZES = ((97, 131), (112, 112), (120, 160), (70, 200), (129, 65))
"""Above 64 px: a GroupNorm over a map of one cell divides by the deviation of few values,
and amplifies rounding.
"""


def read_model(config: str) -> Config:
    """A config whose toolbox is imported and whose scope is the default one."""
    cfg = Config.fromfile(ROOT / 'configs' / config)
    scope = cfg.default_scope
    import_modules_from_strings(f'{scope}.utils').register_all_modules(init_default_scope=False)
    init_default_scope(scope)
    cfg.model.backbone.init_cfg = None
    if 'data_preprocessor' in cfg:  # mmpretrain keeps it beside the model
        cfg.model.setdefault('data_preprocessor', cfg.data_preprocessor)
    cfg.model.data_preprocessor.pop('test_cfg', None)  # an image of its own size, without samples
    return cfg


def add_shipped_models() -> None:
    """The shipped weights in the models of their configs, from pixels to logits, at five sizes."""
    from safetensors.torch import load_file

    def run(config: str, weights: str) -> Outputs:
        model = MODELS.build(read_model(config).model).eval()
        model.load_state_dict(load_file(ROOT / 'cpvt_backbones/weights' / f'{weights}.safetensors'))
        outputs: Outputs = {}
        with torch.no_grad():
            for size in SHIPPED_SIZES:
                inputs = model.data_preprocessor(dict(inputs=list(pixels(size))))['inputs']
                outputs |= name_outputs(model(inputs), f'{size[0]} x {size[1]}')
        return outputs

    for name, (config, weights) in SHIPPED.items():
        CASES[f'shipped {name}'] = lambda _, config=config, weights=weights: run(config, weights)


def add_exported_graphs() -> None:
    """The shipped models cut to one block and one convolution a branch, and their backbone, as
    ONNX.
    """
    one_block = dict(embed_dims=192, depth=1, num_heads=3, mlp_ratio=4.0)

    def run(folder: Path, config: str, part: str) -> Outputs:
        from cpvt_backbones.export import export, graph_of
        from cpvt_backbones.export.exported import ExportedModel

        cfg = read_model(config)
        cfg.model.backbone.update(arch=one_block, position=dict(type='PEG', after_blocks=(0,)))
        if 'bbox_head' in cfg.model:
            cfg.model.bbox_head.stacked_convs = 1
            cfg.model.test_cfg.max_per_img = 8
        model = fill(MODELS.build(cfg.model))
        export(
            graph_of(model, part=part, logits=hasattr(model, 'decode_head')), folder / 'model.onnx'
        )
        exported = ExportedModel(folder / 'model.onnx', device='cpu')
        outputs: Outputs = {}
        for size in ((50, 37), (97, 131)):
            found = exported.run(pixels(size).numpy())
            outputs |= {f'{size[0]} x {size[1]} {name}': value for name, value in found.items()}
        return outputs

    for name, (config, _) in SHIPPED.items():
        CASES[f'exported {name}'] = lambda folder, config=config: run(folder, config, 'model')
    CASES['exported backbone'] = lambda folder: run(folder, SHIPPED['detector'][0], 'backbone')


add_registered_sizes()
add_variants()
add_encodings()
add_loaded_tables()
add_shipped_models()
add_exported_graphs()


# -- numbers
# --------------------------------------------------------------------------------------------------

Summary = dict[str, list[float]]
SAMPLES = 8


def summarise(output: np.ndarray) -> Summary:
    """A few numbers of an output.

    Returns:
        dict: ``shape``; ``statistics``: mean, standard deviation, and a sum with the signs and
        sizes of a cosine, scaled so that it varies as much as one value (mean and deviation hardly
        notice what a LayerNorm undoes); ``values`` at evenly spaced places.
    """
    flat = output.ravel().astype(np.float64)
    wave = flat @ np.cos(np.arange(flat.size)) / max(flat.size, 1) ** 0.5
    places = [(flat.size - 1) * i // (SAMPLES - 1) for i in range(SAMPLES)]
    statistics = [float(flat.mean()), float(flat.std()), float(wave)]
    return dict(
        shape=list(output.shape),
        statistics=statistics,
        values=[float(flat[place]) for place in places],
    )


def difference(found: Summary, expected: Summary) -> float:
    """Largest difference, relative to the root mean square of the expected output.

    Infinite if shapes differ.
    """
    if found['shape'] != expected['shape']:
        return float('inf')
    mean, deviation, _ = expected['statistics']
    scale = (mean**2 + deviation**2) ** 0.5 or 1.0
    pairs = zip(
        found['statistics'] + found['values'],
        expected['statistics'] + expected['values'],
        strict=True,
    )
    worst = max(abs(a - b) for a, b in pairs) / scale
    return worst if worst == worst else float('inf')
