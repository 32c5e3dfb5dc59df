"""Differences from the packages whose weights load, with random weights in models of full size.

    python benchmarks/parity.py [PEER ...] [--family TEXT]

Writes docs/weights_parity.csv anew: the rows of the named peers, or of all that import. Rows of
other peers are kept, and with `--family` those of families without TEXT in their names. `make
parity` measures mmpretrain and transformers one after the other.

At the odd size, a peer drops the last rows of a map that it reduces by a strided convolution. The
last column has the same peer with that map padded. A cell without a number says why: the peer
refuses the size, has maps of another shape, reduces no map, or was not measured there.
"""

import csv
import importlib
import importlib.metadata
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

# For `benchmarks`, where this file runs as a script.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import processor
from benchmarks.peer_models import (
    MM_TABLE,
    PVT_TABLE,
    PVTV2_ARCH,
    lists,
    pvt_authors_names,
    pvtv2_authors_names,
    scaled,
    transformers_tokens,
)
from benchmarks.public_weights import PARITY, family_of
from cpvt import command_line as cli
from cpvt_backbones import CPVT, PyramidCPVT, convert_state_dict
from cpvt_backbones.backbones.archs import HIERARCHICAL_ARCHS
from cpvt_backbones.checkpoints import SOURCES, public_backbone
from cpvt_backbones.errors import InputError

ODD = (229, 261)  # px; no grid of it fills windows of 7 x 7 along one side alone
HEAD = [
    *('recognised as', 'models', 'peer', 'number', 'native size', '4 x 7', '9 x 3 patches'),
    *('{} x {} px'.format(*ODD), '{} x {} px, its reduction padded'.format(*ODD)),
    'measured with',
]
NOT_MEASURED, NOT_TAKEN, OTHER_SHAPE = 'not measured', 'not taken', 'other shape'
DISTRIBUTIONS = {
    'timm': 'timm',
    'mmdet': 'onedl-mmdetection',
    'mmpretrain': 'onedl-mmpretrain',
    'mmseg': 'onedl-mmsegmentation',
    'open_clip': 'open_clip_torch',
    'transformers': 'transformers',
}
WIDTHS = dict(tiny=192, small=384, base=768)
# Where mmseg and mmpretrain mask the padding of windows: it must be at both sides of each grid.
SVT_SIZES = ((4, 6), (9, 3))


class Case(NamedTuple):
    """One model of a peer, and the model here that its weights go into."""

    peer: str
    family: str  # row of the table
    theirs: nn.Module
    ours: Any
    outputs: Callable[[Tensor], Any]  # of theirs, for images: what ours returns
    rename: Callable[[dict[str, Tensor]], dict[str, Tensor]] = dict  # state dict to other names
    native: int = 224  # px
    any_size: bool = True  # whether theirs takes other sizes
    sizes: tuple[tuple[int, int], ...] = ((4, 7), (9, 3))  # two more, in patches


def column(width: int, **arguments: Any) -> CPVT:
    arch = dict(embed_dims=width, depth=12, num_heads=width // 64, mlp_ratio=4.0)
    return CPVT(**{'arch': arch, 'img_size': 224, 'position': MM_TABLE, **arguments})


def timm_cases(text: str = '') -> Iterator[Case]:
    """All models whose public weights fit, by name without tag, of families with a text in their
    names.

    Of width 1024 one a family, of SAM (1024 px) the base model, and no wider one.
    """
    import timm

    wide = {'SAM'}
    for name in sorted({name.split('.')[0] for name in timm.list_models(pretrained=True)}):
        built: Any = public_backbone(f'timm://{name}.tag')
        if built is None or text not in family_of(name):
            continue
        family, arch = family_of(name), built.get('arch')
        if isinstance(arch, dict) and arch['embed_dims'] >= 1024:
            if family in wide or arch['embed_dims'] > 1024:
                continue
            wide.add(family)
        cls = dict(CPVT=CPVT, PyramidCPVT=PyramidCPVT)[built.pop('type')]
        native = built.get('img_size', 224)
        if family == 'SAM':
            theirs = timm.create_model(name)
            last = dict(indices=1, norm=False, intermediates_only=True)  # before the neck
            outputs = partial(theirs.forward_intermediates, **last)
            yield Case('timm', family, theirs, cls(**built), outputs, native=native)
            continue
        options = dict(dynamic_img_size=True) if cls is CPVT else {}
        theirs = timm.create_model(name, num_classes=0, **options)
        ours = cls(**built, out_type='raw', out_indices=-1)
        yield Case('timm', family, theirs, ours, partial(timm_tokens, theirs), native=native)

    for name in ('pvt_v2_b0', 'pvt_v2_b2'):
        for family in ('PVTv2', "PVTv2, with its authors' names"):
            theirs = timm.create_model(name, num_classes=0)
            ours = pvtv2(theirs.depths, 32 if name.endswith('b0') else 64)
            stages = dict(norm=True, intermediates_only=True)
            outputs = partial(theirs.forward_intermediates, **stages)
            rename = pvtv2_authors_names if 'authors' in family else dict
            yield Case('timm', family, theirs, ours, outputs, rename)


def pvtv2(depths: Any, width: int, **options: Any) -> PyramidCPVT:
    arch = dict(HIERARCHICAL_ARCHS['small'], **PVTV2_ARCH, depths=tuple(depths))
    arch['embed_dims'] = tuple(width * factor for factor in (1, 2, 5, 8))
    return PyramidCPVT(arch=arch, position=None, norm_after_stage=True, **options)


def timm_tokens(theirs: Any, images: Tensor) -> Tensor:
    """All tokens of a ViT, normalised by the norm that it has: before or after its pooling."""
    tokens = theirs.forward_features(images)
    if isinstance(theirs.norm, nn.Identity) and getattr(theirs, 'fc_norm', None) is not None:
        return theirs.fc_norm(tokens)
    return tokens


def mmpretrain_cases() -> Iterator[Case]:
    from mmpretrain.models import backbones

    def vit(family: str, size: str, cls: str, mine: dict[str, Any], **options: Any) -> Case:
        theirs = getattr(backbones, cls)(arch=f'deit-{size}', out_type='raw', **options)
        ours = column(WIDTHS[size], out_type='raw', **mine)
        return Case('mmpretrain', family, theirs, ours, theirs)

    for size in WIDTHS:
        yield vit('ViT and DeiT', size, 'VisionTransformer', {})
        yield vit('DeiT, distilled', size, 'DistilledVisionTransformer', dict(with_dist_token=True))
        clip = dict(pre_norm=True, norm_eps=1e-5)
        norm = dict(type='LN', eps=1e-5)
        yield vit('CLIP', size, 'VisionTransformer', clip, pre_norm=True, norm_cfg=norm)
    for arch in ('small', 'base', 'large'):
        # Its names have no final norm but this one.
        norms = dict(norm_after_stage=[False, False, False, True], out_indices=(0, 1, 2, 3))
        theirs = backbones.PCPVT(arch=arch, qkv_bias=True, **norms)
        ours = PyramidCPVT(arch=arch, final_norm=True, norm_eps=1e-5)
        yield Case('mmpretrain', 'Twins-PCPVT', theirs, ours, theirs)
        theirs = backbones.SVT(arch=arch, qkv_bias=True, **norms)
        ours = PyramidCPVT(arch=f'svt_{arch}', final_norm=True, norm_eps=1e-5)
        yield Case('mmpretrain', 'Twins-SVT', theirs, ours, theirs, sizes=SVT_SIZES)


def mmseg_cases() -> Iterator[Case]:
    from mmseg.models import backbones

    for width in WIDTHS.values():
        sizes = dict(img_size=224, embed_dims=width, num_layers=12, num_heads=width // 64)
        theirs = backbones.VisionTransformer(**sizes, patch_bias=True, final_norm=True)
        yield Case('mmseg', 'ViT and DeiT', theirs, column(width, norm_eps=1e-5), theirs)
    for arch in ('small', 'base', 'large'):
        theirs = backbones.PCPVT(**lists(HIERARCHICAL_ARCHS[arch]), qkv_bias=True)
        ours = PyramidCPVT(arch=arch, norm_eps=1e-5)
        yield Case('mmseg', 'Twins-PCPVT', theirs, ours, theirs)
        numbers = lists(
            {k: v for k, v in HIERARCHICAL_ARCHS[f'svt_{arch}'].items() if k != 'window_size'}
        )
        theirs = backbones.SVT(**numbers, windiow_sizes=[7] * 4, qkv_bias=True)
        ours = PyramidCPVT(arch=f'svt_{arch}', norm_after_stage=True, norm_eps=1e-5)
        yield Case('mmseg', 'Twins-SVT', theirs, ours, theirs, sizes=SVT_SIZES)


def mmdet_cases() -> Iterator[Case]:
    """PVT, with mmdet's names and with those of its authors, who have no package."""
    from mmdet.models.backbones import PyramidVisionTransformer, PyramidVisionTransformerV2

    for arch in ('tiny', 'small', 'base', 'large'):
        for family in ('PVT', "PVT, with its authors' names"):
            theirs = PyramidVisionTransformer(num_layers=list(HIERARCHICAL_ARCHS[arch]['depths']))
            ours = PyramidCPVT(arch=arch, embed_norm_eps=1e-6, position=PVT_TABLE)
            rename = partial(pvt_authors_names, extra_entries=0) if 'authors' in family else dict
            yield Case('mmdet', family, theirs, ours, theirs, rename)

    for depths, width in (([2, 2, 2, 2], 32), ([2, 2, 2, 2], 64), ([3, 4, 6, 3], 64)):
        theirs = PyramidVisionTransformerV2(num_layers=depths, embed_dims=width)
        ours = pvtv2(depths, width, embed_norm_eps=1e-6)
        yield Case('mmdet', 'PVTv2', theirs, ours, theirs)


def open_clip_cases() -> Iterator[Case]:
    from open_clip.transformer import QuickGELU, VisionTransformer

    for width in (384, 768):
        for act, activation in ((nn.GELU, 'gelu'), (QuickGELU, 'quick_gelu')):
            sizes = dict(width=width, layers=12, heads=width // 64, mlp_ratio=4.0)
            theirs = VisionTransformer(224, 16, **sizes, act_layer=act)
            clip = dict(pre_norm=True, norm_eps=1e-5, activation=activation)
            ours = column(width, **clip, out_type='raw')

            def tokens(images: Tensor, theirs: Any = theirs) -> Tensor:
                return theirs.ln_post(theirs.transformer(theirs._embeds(images)))

            yield Case('open_clip', 'CLIP', theirs, ours, tokens, any_size=False)


# Class of transformers and options of its config.
TRANSFORMERS: dict[str, tuple[str, dict[str, Any]]] = {
    'ViT': ('ViTModel', {}),
    'DeiT, distilled': ('DeiTModel', {}),
    'DINOv2': ('Dinov2Model', {}),
    'DINOv2, SwiGLU': ('Dinov2Model', dict(use_swiglu_ffn=True)),
    'DINOv2, registers': ('Dinov2WithRegistersModel', dict(num_register_tokens=4)),
    'DINOv3': ('DINOv3ViTModel', dict(num_register_tokens=4)),
    'DINOv3, SwiGLU': (
        'DINOv3ViTModel',
        dict(num_register_tokens=4, use_gated_mlp=True, hidden_act='silu'),
    ),
    'CLIP': ('CLIPVisionModel', {}),
    'SigLIP': ('SiglipVisionModel', {}),
}


def transformers_cases() -> Iterator[Case]:
    import transformers

    for family, (name, options) in TRANSFORMERS.items():
        for width in (384, 768):
            model = getattr(transformers, name)
            sizes = dict(hidden_size=width, num_attention_heads=width // 64, num_hidden_layers=12)
            sizes |= dict(patch_size=16, image_size=224)
            if not name.startswith('Dinov2'):
                sizes['intermediate_size'] = 4 * width
            theirs = model(model.config_class(**sizes, **options))
            with tempfile.TemporaryDirectory() as folder:
                theirs.save_pretrained(folder)  # config.json has what no key shows
                ours = CPVT.from_pretrained(folder, out_type='raw')
            yield Case('transformers', family, theirs, ours, partial(transformers_tokens, theirs))
    for width in (384, 768):
        sizes = dict(hidden_size=width, num_attention_heads=width // 64, num_hidden_layers=12)
        windows = [block for block in range(12) if block % 3 != 2]
        options = dict(use_relative_position_embeddings=True, window_block_indices=windows)
        vitdet = transformers.VitDetConfig(**sizes, **options, window_size=5)
        theirs = transformers.VitDetModel(vitdet)

        def features(images: Tensor, theirs: Any = theirs) -> Tensor:
            return theirs(images).last_hidden_state

        yield Case('transformers', 'ViTDet', theirs, by_weights(theirs), features)
        sam = transformers.SamVisionConfig(**sizes, mlp_dim=4 * width, image_size=512)
        theirs = transformers.SamVisionModel(sam)
        ours = by_weights(theirs)
        theirs.vision_encoder.neck = nn.Identity()

        def channels_first(images: Tensor, theirs: Any = theirs) -> Tensor:
            return theirs(images).last_hidden_state.permute(0, 3, 1, 2)

        options = dict(native=512, any_size=False)
        yield Case('transformers', 'SAM', theirs, ours, channels_first, **options)
    yield from transformers_pyramids()


def transformers_pyramids() -> Iterator[Case]:
    """PVT-T at its own size, because transformers resizes no table of PVT, and PVTv2-B0."""
    import transformers

    for name, any_size in (('PVT', False), ('PVTv2', True)):
        model = transformers.PvtModel if name == 'PVT' else transformers.PvtV2Model
        theirs = model(model.config_class())
        out_type = 'raw' if name == 'PVT' else 'featmap'
        with tempfile.TemporaryDirectory() as folder:
            theirs.save_pretrained(folder)
            ours = PyramidCPVT.from_pretrained(folder, out_type=out_type, out_indices=-1)

        def last(images: Tensor, theirs: Any = theirs) -> Tensor:
            return theirs(images).last_hidden_state

        yield Case('transformers', name, theirs, ours, last, any_size=any_size)


def by_weights(theirs: nn.Module) -> nn.Module:
    """The model that the names and shapes of weights show."""
    with tempfile.TemporaryDirectory() as folder:
        torch.save(theirs.state_dict(), f'{folder}/weights.pth')
        return CPVT.from_pretrained(f'{folder}/weights.pth')


PEERS: dict[str, Callable[[], Iterator[Case]]] = dict(
    timm=timm_cases,
    mmpretrain=mmpretrain_cases,
    mmseg=mmseg_cases,
    mmdet=mmdet_cases,
    open_clip=open_clip_cases,
    transformers=transformers_cases,
)


def differences(case: Case) -> tuple[str, list[float | str]]:
    """Names that the weights are recognised by, and the worst difference at each size.

    Sizes are the native one, two of patches that are not square, and an odd one: for a pyramid,
    patches of its last stride. A difference is relative to the largest value, at least to 1.
    """
    scaled(case.theirs)
    state = case.rename(case.theirs.state_dict())
    weights, report = convert_state_dict(state, case.ours)
    if report.missing:
        raise ValueError(f'{case.peer}, {case.family}: the weights lack {report.missing}')
    case.ours.load_state_dict(weights, strict=True)
    case.ours.eval()
    stride = case.ours.out_strides[-1]
    sizes = [(height * stride, width * stride) for height, width in case.sizes]
    found: list[float | str] = [difference(case, (case.native, case.native))]
    found += [difference(case, size) if case.any_size else NOT_TAKEN for size in sizes]
    found.append(odd_difference(case))
    found.append(odd_difference(case) if pad_reductions(case.theirs) else '')
    return report.source, found


def difference(case: Case, size: tuple[int, int]) -> float:
    """Worst difference at a size in pixels."""
    images = torch.randn(1, 3, *size)
    with torch.inference_mode():
        got, wanted = case.ours(images), case.outputs(images)
    wanted = [wanted] if isinstance(wanted, Tensor) else wanted
    return max(map(relative, got, wanted))


def odd_difference(case: Case) -> float | str:
    """Worst difference at ``ODD``, or why there is none."""
    if not case.any_size:
        return NOT_TAKEN
    with torch.inference_mode():
        try:
            case.outputs(torch.randn(1, 3, *ODD))
        except (AssertionError, RuntimeError, ValueError):
            return NOT_TAKEN
    try:
        return difference(case, ODD)
    except ShapeError:
        return OTHER_SHAPE


def pad_reductions(theirs: nn.Module) -> bool:
    """Pad the maps that strided convolutions of attention reduce; return whether there are any."""
    reductions = [
        module
        for name, module in theirs.named_modules()
        if name.endswith(('.sr', '_reduction'))
        and isinstance(module, nn.Conv2d)
        and module.stride[0] > 1
    ]
    for module in reductions:
        module.register_forward_pre_hook(padded_map)
    return bool(reductions)


def padded_map(reduction: nn.Module, inputs: tuple[Tensor]) -> Tensor:
    """The map with zeros on the right and at the bottom, up to a multiple of the stride."""
    height, width = inputs[0].shape[2:]
    stride: Any = reduction.stride
    return nn.functional.pad(inputs[0], (0, -width % stride[1], 0, -height % stride[0]))


class ShapeError(ValueError):
    """Tensors of other shapes."""


def relative(got: Tensor, wanted: Tensor) -> float:
    """Largest difference of two tensors of one shape."""
    if got.shape != wanted.shape:
        raise ShapeError(f'shapes differ: {tuple(got.shape)} and {tuple(wanted.shape)}')
    return ((got - wanted).abs().max() / wanted.abs().max().clamp(min=1)).item()


def measure(peer: str, family: str = '') -> list[list[str]]:
    """Rows of the table for a peer, one a family and kind of names.

    ``family`` is a text in the names of the families that are measured.
    """
    rows: dict[tuple[str, str], list[list[float | str]]] = {}
    # timm has the most models, which take long to build.
    for case in timm_cases(family) if peer == 'timm' else PEERS[peer]():
        if family not in case.family:
            continue
        start = time.monotonic()
        names, found = differences(case)
        rows.setdefault((names, case.family), []).append(found)
        seconds = f'{time.monotonic() - start:.0f} s'
        print(peer, case.family, names, *found, seconds, sep=' | ', flush=True)
    return [
        [names, family, peer, str(len(models)), *map(worst, zip(*models, strict=True))]
        for (names, family), models in rows.items()
    ]


def worst(found: tuple[float | str, ...]) -> str:
    """A cell for the models of a row at one size."""
    numbers = [number for number in found if not isinstance(number, str)]
    if not numbers:
        return str(found[0])
    return f'{max(numbers):.1e}'.replace('e-0', 'e-') if max(numbers) else '0'


def table_rows() -> list[list[str]]:
    """Rows of the table that was measured."""
    with PARITY.open(encoding='utf-8', newline='') as file:
        return [*csv.reader(file)][1:]


def write(peer: str, rows: list[list[str]], family: str = '') -> None:
    """Replace the rows of a peer, of the families with a text in their names."""
    kept = [row for row in table_rows() if row[2] != peer or family not in row[1]]
    order = [family.name for family in SOURCES]
    table = sorted(kept + rows, key=lambda row: (order.index(row[0]), row[2]))
    with PARITY.open('w', encoding='utf-8', newline='') as file:
        csv.writer(file, lineterminator='\n').writerows([HEAD, *table])


def main(argv: Sequence[str] | None = None) -> None:
    parser = cli.make_parser(__doc__)
    parser.add_argument('peers', nargs='*', metavar='PEER', help=', '.join(PEERS))
    parser.add_argument('--family', default='', metavar='TEXT', help="text in a family's name")
    args = parser.parse_args(argv)
    peers = args.peers
    if unknown := set(peers) - {*PEERS}:
        raise InputError(
            f'PEER must be one of {", ".join(PEERS)}, got {", ".join(sorted(unknown))}'
        )
    for peer in peers or PEERS:
        try:
            importlib.import_module(peer)
        except ImportError as error:
            if peers:
                raise
            print(f'{peer} is left out: {error}')
            continue
        torch.manual_seed(0)
        rows = measure(peer, args.family)
        version = importlib.metadata.version(DISTRIBUTIONS[peer])
        environment = f'{version}, torch {torch.__version__}, fp32, {processor()}'
        write(peer, [[*row, environment] for row in rows], args.family)


if __name__ == '__main__':
    cli.run(main)
