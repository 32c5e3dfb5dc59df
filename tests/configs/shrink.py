"""Configs of the repository made small enough for a CPU, by overrides as in `--cfg-options`."""

import copy
from functools import cache
from pathlib import Path

import numpy as np
import torch
from mmengine.config import Config
from mmengine.dataset import Compose, pseudo_collate
from mmengine.registry import MODELS, init_default_scope

from cpvt_backbones.backbones.archs import COLUMNS, PYRAMIDS
from cpvt_backbones.toolboxes import read_config

ROOT = Path(__file__).resolve().parents[2]
PROJECTS = (ROOT / 'projects').glob('*/configs/*/*.py')
CONFIGS = sorted(
    p for p in (*(ROOT / 'configs').rglob('*.py'), *PROJECTS) if '_base_' not in p.parts
)
FACTOR = 8  # of widths and of image sizes


def name(path: Path) -> str:
    return str(path.relative_to(ROOT)).removeprefix('configs/')


@cache
def _read(path: Path) -> Config:
    return read_config(path)


def read(path: Path) -> Config:
    """The config at full size, read once a process."""
    return copy.deepcopy(_read(path))


def small_arch(backbone: dict) -> dict:
    """The architecture with an eighth of the width."""
    arch = backbone.get('arch')
    if backbone['type'] == 'PyramidCPVT':
        numbers = {**PYRAMIDS[arch]}
        return {
            **numbers,
            'embed_dims': tuple(d // FACTOR for d in numbers['embed_dims']),
            'depths': (1, 1, 2, 1),
            'mlp_ratios': (2,) * 4,
        }
    numbers = {**COLUMNS[arch]} if isinstance(arch, str) else dict(arch)
    return {**numbers, 'embed_dims': numbers['embed_dims'] // FACTOR, 'mlp_ratio': 1}


def overrides(cfg: Config) -> dict:
    """Dotted overrides that make the model small."""
    model = cfg.model
    small = backbone_overrides(model.backbone)
    small |= transformer_overrides(model)
    if 'neck' in model:
        small['model.neck.in_channels'] = [c // FACTOR for c in model.neck.in_channels]
        small['model.neck.out_channels'] = 32
    for head in ('bbox_head', 'decode_head', 'auxiliary_head', 'head', 'rpn_head', 'panoptic_head'):
        if head in model:
            small |= head_overrides(model[head], f'model.{head}', behind_neck='neck' in model)
    if 'roi_head' in model:
        small |= roi_overrides(model.roi_head)
    return small


def backbone_overrides(backbone) -> dict:
    at = 'model.backbone'
    if backbone.type in ('CPVT', 'MultiScaleCPVT', 'PyramidCPVT'):
        return {f'{at}.arch': {'_delete_': True, **small_arch(backbone)}}
    if backbone.type == 'PyramidVisionTransformer':
        return {f'{at}.embed_dims': 64 // FACTOR, f'{at}.num_layers': [1, 1, 2, 1]}
    if backbone.type == 'ResNet':
        return {f'{at}.base_channels': 64 // FACTOR}
    wrapped = backbone
    if 'backbone' in backbone:
        wrapped = backbone.backbone
        at = f'{at}.backbone'
    if 'SwinTransformer' in wrapped.type:
        return {
            f'{at}.embed_dims': wrapped.get('embed_dims', 96) // FACTOR,
            f'{at}.depths': [1, 1, 2, 1],
            f'{at}.num_heads': [1, 2, 3, 4],
        }
    return {
        'model.backbone.embed_dims': [d // FACTOR for d in backbone.embed_dims],
        'model.backbone.depths': [1, 1, 2, 1],
    }


def head_overrides(options, at: str, *, behind_neck: bool) -> dict:
    small = {}
    for key in ('in_channels', 'channels', 'feat_channels'):
        if key not in options:
            continue
        old = options[key]
        if key == 'in_channels' and not behind_neck:
            new = [c // FACTOR for c in old] if isinstance(old, (list, tuple)) else old // FACTOR
        else:
            new = [32] * len(old) if isinstance(old, (list, tuple)) else 32
        small[f'{at}.{key}'] = new
    if 'stacked_convs' in options:
        small[f'{at}.stacked_convs'] = 1
    return small


def roi_overrides(roi_head) -> dict:
    heads = ['bbox_head']
    if isinstance(roi_head.bbox_head, list):
        heads = [f'bbox_head.{index}' for index in range(len(roi_head.bbox_head))]
    small = {}
    for head in heads:
        small[f'model.roi_head.{head}.in_channels'] = 32
        small[f'model.roi_head.{head}.fc_out_channels'] = 32
        small[f'model.roi_head.{head}.conv_out_channels'] = 32
    small |= {
        'model.roi_head.bbox_roi_extractor.out_channels': 32,
        'model.roi_head.mask_roi_extractor.out_channels': 32,
        'model.roi_head.mask_head.in_channels': 32,
        'model.roi_head.mask_head.conv_out_channels': 32,
        'model.roi_head.mask_head.num_convs': 1,
    }
    return small


# Sizes of DETR, DINO and Mask2Former, by the name of the argument.
TRANSFORMER = dict(
    embed_dims=32,
    feedforward_channels=32,
    num_feats=16,
    num_layers=1,
    num_queries=20,
    num_dn_queries=10,
    max_per_img=20,
    num_points=64,
    out_channels=32,
    feat_channels=32,
)


def transformer_overrides(node, at='model') -> dict:
    """Overrides in the parts of a model that are transformers."""
    small = {}
    for key, value in node.items():
        here = f'{at}.{key}'
        if key in TRANSFORMER and (key != 'num_points' or value > 4):  # 4: of deformable attention
            small[here] = TRANSFORMER[key]
        elif isinstance(value, dict) and key not in ('backbone', 'neck', 'roi_head', 'rpn_head'):
            small |= transformer_overrides(value, here)
    if node.get('type') == 'DINOHead':
        small[f'{at}.embed_dims'] = TRANSFORMER['embed_dims']
    for index, augment in enumerate(node.get('batch_augments') or ()):
        small[f'{at}.batch_augments.{index}.size'] = shrink_size(augment.size)
    return small


def smaller_images(node):
    """The same pipeline for images an eighth as large, where they are larger than 330 px."""
    if isinstance(node, dict):
        return {
            key: shrink_size(value)
            if key in ('scale', 'scales', 'crop_size', 'scale_factor')
            else smaller_images(value)
            for key, value in node.items()
        }
    if isinstance(node, (list, tuple)):
        return [smaller_images(value) for value in node]
    return node


def shrink_size(value):
    if isinstance(value, (list, tuple)):
        return type(value)(shrink_size(v) for v in value)
    return max(value // FACTOR, 16) if value > 330 else value


def read_small(path: Path) -> Config:
    """The shrunk config, without weights to load, mixed precision and sharding."""
    cfg = read(path)
    cfg.merge_from_dict(overrides(cfg))
    for backbone in (cfg.model.backbone, cfg.model.backbone.get('backbone', {})):
        backbone.pop('init_cfg', None)  # weights of the full size
    wrapper = {
        k: v for k, v in cfg.optim_wrapper.items() if k not in ('dtype', 'use_fsdp', 'loss_scale')
    }
    cfg.optim_wrapper = {**wrapper, 'type': 'OptimWrapper'}
    return cfg


def build(cfg: Config) -> torch.nn.Module:
    init_default_scope(cfg.default_scope)
    model = dict(cfg.model)
    if 'data_preprocessor' in cfg:
        model.setdefault('data_preprocessor', cfg.data_preprocessor)
    return MODELS.build(model)


class Scene:
    """A random image with two objects, labelled for any task, in the form that the toolboxes'
    datasets return.
    """

    def __init__(self, folder: Path, height: int, width: int) -> None:
        import mmcv

        self.height, self.width = height, width
        rng = np.random.default_rng(height * 1000 + width)
        image = rng.integers(0, 255, (height, width, 3), dtype=np.uint8)
        labels = np.ones((height, width), dtype=np.uint8)
        labels[height // 4 : height // 2, width // 4 : width // 2] = 2
        self.image_path = str(folder / f'{height}x{width}.png')
        self.labels_path = str(folder / f'{height}x{width}_labels.png')
        mmcv.imwrite(image, self.image_path)
        mmcv.imwrite(labels, self.labels_path)

    def raw(self, scope: str) -> dict:
        if scope == 'mmpretrain':
            return dict(img_path=self.image_path, gt_label=1)
        if scope == 'mmseg':
            return dict(
                img_path=self.image_path,
                seg_map_path=self.labels_path,
                label_map=None,
                reduce_zero_label=False,
                seg_fields=[],
            )
        boxes = [
            [4, 4, self.width // 2, self.height // 2],
            [self.width // 3, self.height // 3, self.width - 4, self.height - 4],
        ]
        return dict(
            img_path=self.image_path,
            img_id=0,
            height=self.height,
            width=self.width,
            instances=[
                dict(
                    bbox=box,
                    bbox_label=label,
                    ignore_flag=0,
                    mask=[[box[0], box[1], box[2], box[1], box[2], box[3], box[0], box[3]]],
                )
                for label, box in enumerate(boxes)
            ],
        )


def batch(cfg: Config, which: str, scenes: list[Scene]) -> dict:
    """Scenes, processed by the pipeline of the config's dataset."""
    dataset = cfg[f'{which}_dataloader'].dataset
    dataset = dataset.dataset if dataset.type == 'RepeatDataset' else dataset
    steps = smaller_images([dict(step) for step in dataset.get('datasets', [dataset])[0].pipeline])
    if dataset.type == 'DecodedDataset':  # returns images, not paths
        steps.insert(0, dict(type='LoadImageFromFile'))
    for step in steps:
        # ADE20KDataset sets this key itself; the scenes come from no dataset.
        if step['type'] == 'LoadAnnotations':
            step.pop('reduce_zero_label', None)
    init_default_scope(cfg.default_scope)
    run = Compose(steps)
    return pseudo_collate([run(scene.raw(cfg.default_scope)) for scene in scenes])
