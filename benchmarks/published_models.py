"""Index of published models: configs/published with the publishers' addresses and scores.

python benchmarks/published_models.py [PART OF A NAME ...]

Addresses and scores are read from the metafiles of the installed toolboxes, and from
benchmarks/public_accuracy.csv where no toolbox has a model. They go into the index of weights:
the entries of the named configs, or of all.
"""

import csv
import json
import re
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.metadata import metadata, packages_distributions
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import yaml
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from timm.models import get_pretrained_cfg
from torch.utils.flop_counter import FlopCounterMode

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # for `benchmarks`, where this file runs as a script

from cpvt import command_line as cli  # noqa: E402
from cpvt_backbones.checkpoints import config_normalisation  # noqa: E402
from cpvt_backbones.errors import InputError  # noqa: E402
from cpvt_backbones.weights import FOLDER  # noqa: E402

CONFIGS = ROOT / 'configs' / 'published'
ACCURACY = Path(__file__).with_name('public_accuracy.csv')
SIZES = dict(t='tiny', s='small', b='base', l='large', m='medium')
DATASETS = dict(coco='COCO', ade20k='ADE20K', cityscapes='Cityscapes', imagenet='ImageNet-1k')
# By the last part of a name: data set, or data set and task.
TASKS = dict(
    coco='detection',
    coco_instance='detection',
    coco_panoptic='panoptic',
    ade20k_panoptic='panoptic',
    ade20k='segmentation',
    cityscapes='segmentation',
    imagenet='classification',
)
SHAPES = dict(
    coco=[800, 1344],
    coco_instance=[640, 640],
    coco_panoptic=[640, 640],
    ade20k_panoptic=[640, 640],
    ade20k=[512, 512],
    cityscapes=[1024, 1024],
    imagenet=[224, 224],
)
# Name of a config's file, and the name that a user types; `{}` is a size that has one letter there.
NAMES = {
    r'retinanet_(pvtv2)-(b\d)_.*': 'retinanet_{0}_{1}-coco',
    r'retinanet_(pvt)-(.)_.*': 'retinanet_{0}_{1}-coco',
    r'vitdet_mask-rcnn_vit-(.)-.*': 'mask_rcnn_vitdet_{0}-coco',
    r'twins_(pcpvt|svt)-(.)_fpn_.*': 'semantic_fpn_twins_{0}_{1}-ade20k',
    r'twins_(pcpvt|svt)-(.)_uperhead_.*': 'upernet_twins_{0}_{1}-ade20k',
    r'segmenter_vit-(.)_mask_.*': 'segmenter_vit_{0}-ade20k',
    r'segmenter_vit-(.)_fcn_.*': 'segmenter_linear_vit_{0}-ade20k',
    r'dpt_vit-(.)16_.*': 'dpt_vit_{0}-ade20k',
    r'(mae|beit)-(base)_upernet_.*': 'upernet_{0}_{1}-ade20k',
    r'vit_(vit|deit)-(.)16(-ln)?(_mln)?_upernet_\w+-(\d+k)_.*': (
        'upernet_{0}_{1}{2}{3}_{4}-ade20k'
    ),
    r'(.+)_in1k(-384px)?': '{0}{1}-imagenet',
    r'(pvt_.*|.*_rope_.*)': '{0}-imagenet',
    r'(dinov2-\w+)-imagenet1k-1-layer': '{0}-imagenet',
    r'(\w+)_semantic_eomt_(\w+)_\d+': 'eomt_{1}-{0}',
    r'(\w+_(?:instance|panoptic))_eomt_([a-z]+)_640(?:_2x)?': 'eomt_{1}-{0}',
    r'(\w+_(?:instance|panoptic))_eomt_([a-z]+_1280)': 'eomt_{1}-{0}',
}
# Of mmdet's project ViTDet, which is not installed with mmdet.
VITDET = (
    'https://download.openmmlab.com/mmdetection/v3.0/vitdet/vitdet_mask-rcnn_vit-b-mae_lsj-100e/'
    'vitdet_mask-rcnn_vit-b-mae_lsj-100e_20230328_153519-e15fe294.pth'
)
# DINOv2's classifiers: file, its SHA-256 as stated on its page at Hugging Face, and the top-1 in
# the column "linear" of the authors' README.
DINOV2 = {
    'small': (
        'model.safetensors',
        '078c38e46593866ca9fd3db295d3a1e828c3f6901b5683cf9b56b84f655da40d',
        81.1,
    ),
    'base': (
        'pytorch_model.bin',
        '89b1a3d12cd1725f8185879da15e5ff670f941518ea9a73ee2cc27db659bc66c',
        84.5,
    ),
    'large': (
        'pytorch_model.bin',
        'ee8bfdb51b64788ba0a4299e7ca6b4b71b75698ef65bb9692de878ccd415eb62',
        86.3,
    ),
    'giant': (
        'model.safetensors',
        'a027deffcc5f81ab85e4498ae87944041a818c6a32435de9c8ec5623c010c90b',
        86.5,
    ),
}


# EoMT's: metric and score in its authors' model_zoo/dinov2.md.
EOMT = {
    'coco_panoptic_eomt_small_640_2x': ('PQ', 46.7),
    'coco_panoptic_eomt_base_640_2x': ('PQ', 51.6),
    'coco_panoptic_eomt_large_640': ('PQ', 56.0),
    'coco_panoptic_eomt_giant_640': ('PQ', 57.0),
    'coco_panoptic_eomt_large_1280': ('PQ', 58.3),
    'ade20k_panoptic_eomt_large_640': ('PQ', 50.6),
    'ade20k_semantic_eomt_large_512': ('mIoU', 58.4),
    'cityscapes_semantic_eomt_large_1024': ('mIoU', 84.2),
    'coco_instance_eomt_large_640': ('mask AP', 45.2),
    'coco_instance_eomt_large_1280': ('mask AP', 48.8),
}


def name_of(stem: str) -> str:
    """Name that a user types for the config of this name."""
    for pattern, name in NAMES.items():
        if match := re.fullmatch(pattern, stem):
            parts = [SIZES.get(part or '', part or '') for part in match.groups()]
            made = name.format(*parts).replace('-384px', '_384')
            model, _, dataset = made.rpartition('-')
            model = re.sub(r'_\d+x[ab]*\d+(-mae)?', r'\1', model)  # batch size
            return f'{re.sub("-p(?=[0-9])", "_patch", model).replace("-", "_")}-{dataset}'
    raise InputError(f'NAMES: no pattern is of {stem!r}')


def shape_of(name: str) -> list[int]:
    """(height, width) in px at which a model is counted and timed."""
    model, _, dataset = name.rpartition('-')
    if name.endswith('384-imagenet'):
        return [384, 384]
    return [1280, 1280] if model.endswith('_1280') else SHAPES[dataset]


@cache
def licence_of(package: str) -> str:
    """Licence of a toolbox, in lower case, as its distribution states it."""
    stated = metadata(packages_distributions()[package][0])['License-Expression']
    if not stated:
        raise InputError(f'{package}: its distribution states no licence')
    return stated.removeprefix('LicenseRef-').lower()


def licence_with_start(licence: str, cfg: Config) -> str:
    """A licence, and that of the weights from which the publisher started if it is another."""
    start = (cfg.model.backbone.get('init_cfg') or {}).get('checkpoint', '')
    if not start.startswith('timm://'):
        return licence
    of_start = get_pretrained_cfg(start.removeprefix('timm://')).license
    return licence if of_start == licence else f'{licence}; starts from {of_start}'


def published() -> dict[str, dict[str, Any]]:
    """Address, scores, source and licence by the name of a config's file."""
    found = {}
    for toolbox in ('mmdet', 'mmseg', 'mmpretrain'):
        spec = find_spec(toolbox)
        if spec is None or spec.origin is None:
            raise InputError(f'{toolbox} must be installed')
        root = Path(spec.origin).parent / '.mim'
        for file in sorted(root.glob('configs/*/metafile.y*ml')):
            content = yaml.safe_load(file.read_text(encoding='utf-8'))
            models = content if isinstance(content, list) else content.get('Models') or ()
            for model in models:
                if model.get('Weights') and model.get('Config'):
                    stem = Path(model['Config']).stem
                    if 'svt' in model['Weights']:  # mmseg names the config of PCPVT-L for SVT-L
                        stem = stem.replace('pcpvt', 'svt')
                    found[stem] = dict(
                        address=model['Weights'],
                        scores=dict(scores_of(model.get('Results'))),
                        source=f'{toolbox}, {file.relative_to(root)}',
                        license=licence_of(toolbox),
                    )
    found['vitdet_mask-rcnn_vit-b-mae_lsj-100e'] = dict(
        address=VITDET,
        scores={'box AP': 51.6, 'mask AP': 45.7},
        source='mmdet, projects/ViTDet/README.md',
        license=licence_of('mmdet'),
    )
    for size, (weights, digest, top1) in DINOV2.items():
        name = f'dinov2-{size}-imagenet1k-1-layer'
        page = f'https://huggingface.co/facebook/{name}'
        found[name] = dict(
            address=f'{page}/resolve/main/{weights}#sha256={digest}',
            scores={'top-1': top1},
            source='DINOv2',
            license='apache-2.0',
        )
    found |= eomt()
    for row in csv.DictReader(ACCURACY.open(encoding='utf-8')):
        name = row['name'].partition('.')[0]
        is_pvt = name.startswith('pvt_')
        found[name] = dict(
            address=f'timm://{row["name"]}',
            scores={'top-1': float(row['top1'])},
            source=row['source'],
            license='apache-2.0' if is_pvt else get_pretrained_cfg(row['name']).license,
        )
        if is_pvt:
            release = 'https://github.com/whai362/PVT/releases/download/v2'
            found[name]['address'] = f'{release}/{name}.pth'
    return found


def eomt() -> dict[str, dict[str, Any]]:
    """EoMT's models. No page that could be read states a SHA-256 of their files."""
    return {
        name: dict(
            address=f'https://huggingface.co/tue-mps/{name}/resolve/main/pytorch_model.bin',
            scores={metric: score},
            source='EoMT, model_zoo/dinov2.md',
            license='mit',
        )
        for name, (metric, score) in EOMT.items()
    }


def scores_of(results: Any) -> Iterator[tuple[str, float]]:
    """Metric and value of a metafile's results, in percent."""
    for result in results if isinstance(results, list) else [results or {}]:
        for metric, value in (result.get('Metrics') or {}).items():
            if metric in ('box AP', 'mask AP', 'mIoU', 'Top 1 Accuracy'):
                yield metric.replace('Top 1 Accuracy', 'top-1'), float(value)


def normalisation_of(cfg: Config) -> dict[str, list[float]]:
    """Mean and deviation of the images of a config's model, RGB."""
    found = config_normalisation(cfg.model.get('data_preprocessor') or cfg.data_preprocessor)
    if found is None or not found.rgb:
        raise InputError(f'{cfg.filename}: its data_preprocessor must convert images to RGB')
    return dict(mean=[*found.mean], std=[*found.std])


def count(config: Path, shape: Sequence[int]) -> dict[str, Any]:
    """Parameters of a config's model, and multiply-adds of its trunk, neck and heads."""
    cfg = Config.fromfile(config)
    init_default_scope(cfg.default_scope)
    model = MODELS.build(cfg.model).eval()
    parameters = sum(parameter.numel() for parameter in model.parameters())
    counter = FlopCounterMode(display=False)
    try:
        with torch.device('meta'), torch.no_grad(), counter:
            model.to('meta')(torch.empty(1, 3, *shape))
    except (NotImplementedError, RuntimeError, TypeError, AttributeError) as error:
        print(f'{config.name}: not counted: {str(error).splitlines()[0]}')
        return dict(parameters=parameters)
    gmacs = round(counter.get_total_flops() / 2e9, 1)
    return dict(parameters=parameters, gmacs=gmacs, size=list(shape))


def main(argv: Sequence[str] | None = None) -> None:
    parser = cli.make_parser(__doc__)
    parser.add_argument('names', nargs='*', metavar='NAME', help='part of the name of configs')
    parser.add_argument('--out', type=Path, default=FOLDER / 'index.json', help='the index')
    args = parser.parse_args(argv)
    if not args.out.parent.is_dir():
        raise InputError(f'out: {str(args.out.parent)!r} is not a folder')
    import cpvt_backbones  # noqa: F401  (registers the models)

    known, entries = published(), {}
    index = json.loads((FOLDER / 'index.json').read_text(encoding='utf-8'))
    for config in sorted(CONFIGS.rglob('*.py')):
        name = name_of(config.stem)
        if name in entries:
            raise InputError(f'NAMES: two configs are named {name!r}')
        if args.names and not any(part in config.stem for part in args.names):
            entries[name] = index[name]
            continue
        dataset = name.rpartition('-')[2]
        about = re.match(r'# (.+?)\.?\n', config.read_text(encoding='utf-8'))
        if about is None:
            raise InputError(f'{config}: the first line must be a comment on the model')
        found = known[config.stem]
        found['license'] = licence_with_start(found['license'], Config.fromfile(config))
        entries[name] = dict(
            about=about[1].partition(', of mmdet')[0],
            task=TASKS[dataset],
            dataset=DATASETS[dataset.partition('_')[0]],
            config=config.relative_to(ROOT).as_posix(),
            **found,
            **count(config, shape_of(name)),
            **normalisation_of(Config.fromfile(config)),
        )
        print(name, entries[name]['parameters'], entries[name].get('gmacs'))
    shipped = {name: entry for name, entry in index.items() if 'address' not in entry}
    args.out.write_text(json.dumps(shipped | entries, indent=1) + '\n', encoding='utf-8')


if __name__ == '__main__':
    cli.run(main)
