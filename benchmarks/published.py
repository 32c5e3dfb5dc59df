"""Models of configs/published against the toolboxes' own.

    python benchmarks/published.py [PART OF A NAME ...] [--projects FOLDER] [--pvt FOLDER]

Most configs have one base, the toolbox's config of the model. Those in `timm` have the name of one
of timm's models, and those in `dinov2` that of transformers' weights. No package installs ViTDet
and the classifiers of PVT: `--projects` takes the folder `projects` of a clone of
open-mmlab/mmdetection, `--pvt` the folder `classification` of a clone of whai362/PVT, and `--eomt`
a clone of tue-mps/eomt. Their code runs. Both models get the same random weights and batch
statistics, through a file.

Writes the table of configs/published/README.md anew: the rows of the named configs, or of all.
"""

import copy
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from mmengine.structures import InstanceData
from PIL import Image
from torch import Tensor, nn

# For `benchmarks`, where this file runs as a script.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import eomt_authors, fill_marked, processor
from cpvt import command_line as cli
from cpvt_backbones.checkpoints import load_weights, read_checkpoint, weights_in
from cpvt_backbones.errors import InputError
from cpvt_backbones.toolboxes import read_config

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / 'configs' / 'published'
# Models that no package installs: start of a config's name or its folder, and the option with the
# clone's folder.
CLONES = {'vitdet_': 'projects', 'pvt_': 'pvt', 'eomt': 'eomt'}
ALL_CONFIGS = sorted(FOLDER.rglob('*.py'))
CONFIGS = [
    path
    for path in ALL_CONFIGS
    if path.parent.name != 'eomt' and not path.name.startswith((*CLONES,))
]
PAGE = FOLDER / 'README.md'
PHOTO = ROOT / 'demo' / 'photos' / 'street.jpg'
HEAD = ('config', 'test size', 'odd', 'elongated', 'photograph')
SIZES: dict[str, tuple[tuple[int, int], ...]] = {
    # The size of tests, an odd one and an elongated one. Detectors pad to multiples of 32 px.
    'mmdet': ((800, 1088), (608, 864), (256, 1312)),
    'mmseg': ((512, 512), (333, 517), (256, 800)),
    'beit': ((640, 640), (333, 517), (256, 800)),
    'mmpretrain': ((224, 224), (333, 517), (256, 800)),
    # In whole patches of 14 px: transformers drops the pixels of others.
    'dinov2': ((224, 224), (322, 518), (252, 798)),
    'vitdet': ((1024, 1024), (608, 864), (256, 1312)),
}
# Width, depth and heads. Of ViT-g's 40 blocks 4 are compared: all are alike, and take 4.5 GB.
DINOV2 = dict(small=(384, 12, 6), base=(768, 12, 12), large=(1024, 24, 16), giant=(1536, 4, 24))
SHORTENED = {
    'dinov2-giant-imagenet1k-1-layer': {'model.backbone.arch.depth': 4},
    **{
        path.stem: {'model.backbone.arch.depth': eomt_authors.SHORT}
        for path in ALL_CONFIGS
        if path.parent.name == 'eomt' and path.stem not in eomt_authors.WHOLE
    },
}
# One or more on each level of a pyramid, as shares of the image's width and height.
BOXES = torch.tensor(
    [
        [0.0, 0.0, 1.0, 1.0],
        [0.5, 0.5, 0.9, 1.0],
        [0.1, 0.2, 0.4, 0.5],
        [0.7, 0.4, 0.9, 0.6],
        [0.6, 0.1, 0.65, 0.15],
    ]
)


def clone_of(path: Path) -> str:
    """Key in ``CLONES`` of a config; '' if a package installs its model."""
    if path.parent.name in CLONES:
        return path.parent.name
    return next((start for start in CLONES if path.name.startswith(start)), '')


def peer_of(path: Path, folder: Path | None = None) -> Path:
    """File of the toolbox's config of a model; ``folder`` is that of its clone."""
    if folder is not None and clone_of(path) == 'vitdet_':
        return folder / 'ViTDet' / 'configs' / path.name
    if clone_of(path) == 'eomt':  # no config of a toolbox
        return path
    toolbox, name = toolbox_config(path)
    spec = find_spec(toolbox)
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent / '.mim' / 'configs' / name


def toolbox_config(path: Path) -> tuple[str, str]:
    """Toolbox and name of the config that a config is based on."""
    ((toolbox, name),) = re.findall(r"'(mm\w+)::([^']+)'", path.read_text(encoding='utf-8'))
    return toolbox, name


def build(cfg: Config) -> Any:
    """The model of a config, with random weights."""
    init_default_scope(cfg.default_scope)
    model = copy.deepcopy(dict(cfg.model))
    model.pop('pretrained', None)
    if 'data_preprocessor' in cfg:
        model.setdefault('data_preprocessor', cfg.data_preprocessor)
    return MODELS.build(model).eval()


def as_classifier(model: nn.Module) -> nn.Module:
    """The model, called as one of mmpretrain."""
    forward = model.forward
    model.forward = lambda images, data_samples=None, mode='tensor': forward(images)
    return model.eval()


def timm_model(name: str, weights: Mapping[str, Tensor] | None = None) -> nn.Module:
    """A model of timm, called as one of mmpretrain, with its own transform of images.

    timm loads the weights as those that it downloads; ``None`` is for random ones.
    """
    import timm
    from timm.data import create_transform, resolve_data_config

    options: dict[str, Any] = {}
    if weights is not None:
        options = dict(pretrained=True, pretrained_cfg_overlay=dict(state_dict=dict(weights)))
    model = as_classifier(timm.create_model(name, dynamic_img_size=True, **options))
    model.transform = create_transform(**resolve_data_config(model=model))
    return model


def pvt_model(name: str, folder: Path) -> nn.Module:
    """A classifier of PVT's authors, called as one of mmpretrain, with their transform."""
    from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD, create_transform

    sys.path.insert(0, str(folder))
    model = as_classifier(getattr(import_module('pvt'), name)())
    model.transform = create_transform(
        input_size=224,
        crop_pct=224 / 256,
        interpolation='bicubic',
        mean=IMAGENET_DEFAULT_MEAN,
        std=IMAGENET_DEFAULT_STD,
    )
    return model


def transformers_model(name: str, **options: Any) -> nn.Module:
    """DINOv2's classifier of transformers, called as one of mmpretrain, with its transform.

    ``options`` replace values of its config.
    """
    import transformers

    size = name.split('-')[1]
    width, depth, heads = DINOV2[size]
    sizes = dict(hidden_size=width, num_hidden_layers=depth, num_attention_heads=heads)
    known = dict(image_size=518, patch_size=14, num_labels=1000, use_swiglu_ffn=size == 'giant')
    config = transformers.Dinov2Config(**{**sizes, **known, **options})
    model = transformers.Dinov2ForImageClassification(config).eval()
    # Of preprocessor_config.json beside the weights.
    processor = transformers.BitImageProcessorPil(
        size=dict(shortest_edge=256),
        crop_size=dict(height=224, width=224),
        image_mean=[0.485, 0.456, 0.406],
        image_std=[0.229, 0.224, 0.225],
    )
    forward = model.forward
    model.forward = lambda images, data_samples=None, mode='tensor': forward(images).logits
    model.transform = lambda image: processor(image, return_tensors='pt')['pixel_values'][0]
    return model


def peer_model(
    path: Path, cfg: Config, folder: Path | None, *, depth: int | None = None
) -> nn.Module:
    """The model of a toolbox's config, of timm, of transformers or of PVT's authors.

    ``depth`` is the number of blocks of DINOv2's and EoMT's trunks; ``None`` is for the number that
    is compared with random weights.
    """
    if path.parent.name == 'timm':
        return timm_model(path.stem)
    if path.parent.name == 'dinov2':
        return transformers_model(path.stem, **({'num_hidden_layers': depth} if depth else {}))
    if folder is not None and clone_of(path) == 'pvt_':
        return pvt_model(path.stem, folder)
    if folder is not None and clone_of(path) == 'eomt':
        return eomt_authors.AuthorsModel(folder, path.stem, depth=depth).eval()
    return build(cfg)


def peer_with_weights(
    path: Path, file: Path, folder: Path | None = None, *, depth: int | None = None
) -> nn.Module:
    """The peer of a config with published weights, which it takes by its own names."""
    weights = weights_in(read_checkpoint(file))
    if path.parent.name == 'timm':
        return timm_model(path.stem, weights)
    peer = peer_model(path, read_config(peer_of(path, folder)), folder, depth=depth)
    if clone_of(path) == 'eomt':
        weights = {f'network.{key.removeprefix("network.")}': weights[key] for key in weights}
    missing = peer.load_state_dict(weights, strict=False).missing_keys
    if missing:
        print(f'{file.name} lacks {len(missing)} weights of the peer: {", ".join(missing[:3])}')
    return peer


def randomise(model: nn.Module) -> None:
    """Random weights and batch statistics that keep activations near 1."""
    with torch.no_grad():
        for name, value in model.state_dict().items():
            if not value.is_floating_point():
                continue
            if name.endswith('running_var'):
                value.uniform_(0.5, 1.5)
            elif value.dim() > 1 and name.endswith(('weight', 'proj')):
                value.normal_(0, value[0].numel() ** -0.5)
            elif value.dim() > 1:  # tables and tokens
                value.normal_(0, 0.5)
            else:
                mean = 1 if name.endswith(('weight', 'gamma', 'lambda1')) else 0
                value.normal_(0, 0.1).add_(mean)


def pair(
    path: Path,
    theirs: Mapping[str, Any] | None = None,
    ours: Mapping[str, Any] | None = None,
    folder: Path | None = None,
) -> Iterator[tuple[Config, nn.Module]]:
    """The toolbox's model and ours, each with its config and the same weights.

    ``theirs`` and ``ours`` are overrides of the configs, by dotted names.
    """
    configs = [read_config(peer_of(path, folder)), read_config(path)]
    for cfg, overrides in zip(configs, (theirs, ours), strict=True):
        cfg.merge_from_dict(dict(overrides or {}))
    model = build(configs[1])
    peer = peer_model(path, configs[0], folder)
    randomise(peer)
    if isinstance(peer, eomt_authors.AuthorsModel):
        peer.make_segments(PHOTO)
    with tempfile.TemporaryDirectory() as scratch:
        load_weights(model, save(peer, scratch))
    yield configs[0], peer
    yield configs[1], model


def save(peer: Any, folder: str | Path) -> Path:
    """Write the weights as they are published; return the file."""
    if hasattr(peer, 'save_pretrained'):  # of transformers
        peer.save_pretrained(folder)
        return Path(folder, 'model.safetensors')
    file = Path(folder, 'published.pth')
    torch.save(dict(state_dict=peer.state_dict(), meta={}), file)
    return file


def outputs(model: Any, images: Tensor) -> list[Tensor]:
    """All logits and box offsets of a model without its post-processing.

    The second stage of a detector gets the same boxes in both models, because rounding may change
    which proposals are kept.
    """
    with torch.inference_mode():
        if not hasattr(model, 'roi_head'):
            return list(flat(model(images, None, mode='tensor')))
        maps = model.extract_feat(images)
        height, width = images.shape[-2:]
        boxes = BOXES * torch.tensor([width, height, width, height])
        return list(
            flat((model.rpn_head(maps), model.roi_head(maps, [InstanceData(bboxes=boxes)])))
        )


def peer_outputs(peer: nn.Module, images: Tensor, ours: Config) -> list[Tensor]:
    """:func:`outputs` of a peer, with the classes in the order of our config."""
    found = outputs(peer, images)
    order = ours.model.get('panoptic_head', {}).get('class_order')
    if order is not None:
        found[0] = found[0][..., [*order, len(order)]]
    return found


def flat(nested: Any) -> Iterator[Tensor]:
    """Tensors of nested sequences."""
    if isinstance(nested, Tensor):
        yield nested
    else:
        for one in nested:
            yield from flat(one)


def difference(got: list[Tensor], wanted: list[Tensor]) -> float:
    """Largest difference of two lists of tensors, relative to the largest value of each."""
    worst = 0.0
    for left, right in zip(got, wanted, strict=True):
        if left.shape != right.shape:
            raise ValueError(f'shapes differ: {tuple(left.shape)} and {tuple(right.shape)}')
        worst = max(worst, ((left - right).abs().max() / right.abs().max()).item())
    return worst


def predict(cfg: Config, model: Any) -> Any:
    """What the toolbox's own function predicts on the photograph, or a peer with its transform."""
    if isinstance(model, eomt_authors.AuthorsModel):
        return model.predict(PHOTO)
    if hasattr(model, 'transform'):
        with torch.inference_mode():
            return model(model.transform(Image.open(PHOTO))[None]).softmax(1)[0]
    init_default_scope(cfg.default_scope)
    model.cfg = copy.deepcopy(cfg)
    dataset = model.cfg.test_dataloader.dataset
    dataset.pipeline = [step for step in dataset.pipeline if 'Annotations' not in step['type']]
    if cfg.default_scope == 'mmdet':
        from mmdet.apis import inference_detector

        found = inference_detector(model, str(PHOTO))
        panoptic = 'pred_panoptic_seg' in found
        return found.pred_panoptic_seg.sem_seg[0] if panoptic else found.pred_instances
    if cfg.default_scope == 'mmseg':
        from mmseg.apis import inference_model

        return inference_model(model, str(PHOTO)).pred_sem_seg.data[0]
    from mmpretrain import ImageClassificationInferencer

    model._config = cfg
    run = ImageClassificationInferencer(model)
    return torch.as_tensor(run(str(PHOTO))[0]['pred_scores'])


def agreement(got: Any, wanted: Any, order: list[int] | None = None) -> str:
    """How many boxes, masks, pixels or scores of two predictions agree, as a cell of the table.

    ``order`` has the peer's number of each class, where they differ.
    """
    if isinstance(got, Tensor) and got.is_floating_point():
        same = torch.allclose(got, wanted, rtol=1e-4, atol=1e-7)
        return 'same scores' if same else f'scores differ by {(got - wanted).abs().max():.1e}'
    if isinstance(got, Tensor) and wanted.dim() == 3:  # classes and segments
        return eomt_authors.same_segments(got, wanted, order=order)
    if isinstance(wanted, dict):
        return eomt_authors.same_instances(got, wanted)
    if isinstance(got, Tensor):
        share = (got == wanted).float().mean().item()
        return f'{share:.2%} of pixels'
    # Scores of a random model are so close that rounding changes which boxes are kept.
    same = (got.labels[:, None] == wanted.labels[None]) & (
        (got.bboxes[:, None] - wanted.bboxes[None]).abs().amax(2) < 0.1
    )
    cell = f'{int(same.any(1).sum())} of {len(got)} boxes'
    if 'masks' not in got:
        return cell
    theirs = wanted.masks[same.float().argmax(1)]
    other, either = (one.sum((1, 2)) for one in (got.masks ^ theirs, got.masks | theirs))
    return f'{cell}, {int((same.any(1) & (other <= 0.01 * either)).sum())} masks'


def sizes_of(path: Path, cfg: Config) -> tuple[tuple[int, int], ...]:
    """(height, width) in px of the images that are compared: the size of tests, and two more."""
    sizes = SIZES.get(path.parent.name, SIZES[cfg.default_scope])
    if clone_of(path) == 'eomt':  # the square that their table is of
        return (cfg.model.backbone.img_size,) * 2, *sizes[1:]
    return sizes


def measure(path: Path, folder: Path | None = None) -> list[str]:
    """Row of the table for a config."""
    start = time.monotonic()
    torch.manual_seed(0)
    (theirs, peer), (ours, model) = pair(path, ours=SHORTENED.get(path.stem), folder=folder)
    row = [path.stem]
    order = ours.model.get('panoptic_head', {}).get('class_order')
    for size in sizes_of(path, ours):
        images = torch.randn(1, 3, *size)
        try:
            wanted = peer_outputs(peer, images, ours)
        except (RuntimeError, AssertionError, ValueError):
            row.append('refused there')
            continue
        found = difference(outputs(model, images), wanted)
        row.append(f'{found:.1e}'.replace('e-0', 'e-') if found else '0')
    if clone_of(path) == 'vitdet_':
        # By its own, boxes may lie beside the image, where mmdet fails to paste masks on a CPU.
        theirs.test_dataloader = ours.test_dataloader
    row.append(agreement(predict(ours, model), predict(theirs, peer), order))
    print(*row, f'{time.monotonic() - start:.0f} s', sep=' | ', flush=True)
    return row


def table_rows() -> dict[str, list[str]]:
    """Rows of the table, by config."""
    text = PAGE.read_text(encoding='utf-8')
    text = text.partition('<!-- parity: begin -->')[2].partition('<!-- parity: end -->')[0]
    lines = [line.strip('| ').split(' | ') for line in text.splitlines() if line[:1] == '|']
    return {cells[0]: cells for cells in lines[2:]}


def write(rows: Mapping[str, list[str]]) -> None:
    """Write the table with the rows of all configs that have one."""
    known = [rows[path.stem] for path in ALL_CONFIGS if path.stem in rows]
    lines = [HEAD, ['---'] + ['---:'] * 4, *known]
    text = '\n'.join(f'| {" | ".join(line)} |' for line in lines)
    environment = f'torch {torch.__version__}, fp32, {processor()}'
    fill_marked(PAGE, 'parity', f'\n{text}\n\nMeasured with {environment}.\n')


def main(argv: Sequence[str] | None = None) -> None:
    parser = cli.make_parser(__doc__)
    parser.add_argument('names', nargs='*', metavar='NAME', help='part of the name of configs')
    for option in CLONES.values():
        parser.add_argument(f'--{option}', type=Path, help='folder of a clone, see above')
    args = parser.parse_args(argv)
    if args.projects:
        sys.path.insert(0, str(args.projects.resolve().parent))
    for name in args.names:
        if not any(name in path.stem for path in ALL_CONFIGS):
            raise InputError(f'NAME: no config of configs/published has {name!r} in its name')
    for path in ALL_CONFIGS:
        if args.names and not any(name in path.stem for name in args.names):
            continue
        option = CLONES.get(clone_of(path), '')
        folder = getattr(args, option) if option else None
        if option and folder is None:
            print(f'{path.stem}: not measured without --{option}')
            continue
        rows = table_rows()
        rows[path.stem] = measure(path, folder)
        write(rows)


if __name__ == '__main__':
    cli.run(main)
