"""Configs of the repository made small enough for a CPU, by overrides as in `--cfg-options`."""

import copy
from functools import cache
from pathlib import Path

import numpy as np
import torch
from mmengine.config import Config
from mmengine.dataset import Compose, pseudo_collate
from mmengine.registry import MODELS, init_default_scope

from cpvt_backbones.backbones.archs import HIERARCHICAL_ARCHS, PLAIN_ARCHS
from cpvt_backbones.toolboxes import read_config

ROOT = Path(__file__).resolve().parents[2]
# Configs of published models are compared in tests/checkpoints/test_published.py.
CONFIGS = sorted(
    p for p in (ROOT / 'configs').rglob('*.py') if not {'_base_', 'published'} & {*p.parts}
)
FACTOR = 8  # of widths and of image sizes
WIDTH = 32  # of necks and heads


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
        numbers = {**HIERARCHICAL_ARCHS[arch]}
        return {
            **numbers,
            'embed_dims': tuple(d // FACTOR for d in numbers['embed_dims']),
            'depths': (1, 1, 2, 1),
            'mlp_ratios': (2,) * 4,
        }
    numbers = {**PLAIN_ARCHS[arch]} if isinstance(arch, str) else dict(arch)
    return {**numbers, 'embed_dims': numbers['embed_dims'] // FACTOR, 'mlp_ratio': 1}


def overrides(cfg: Config) -> dict:
    """Dotted overrides that make the model small."""
    model = cfg.model
    small = backbone_overrides(model.backbone) | transformer_overrides(model)
    has_neck = 'in_channels' in (model.get('neck') or {})  # one that changes channels
    if has_neck:
        small['model.neck.in_channels'] = each(lambda c: c // FACTOR, model.neck.in_channels)
        small['model.neck.out_channels'] = WIDTH
    for head in ('bbox_head', 'decode_head', 'auxiliary_head', 'head', 'rpn_head', 'panoptic_head'):
        for key, old in model.get(head, {}).items():
            if key in ('channels', 'feat_channels') or key == 'in_channels' and has_neck:
                small[f'model.{head}.{key}'] = each(lambda _: WIDTH, old)
            elif key == 'in_channels':
                small[f'model.{head}.{key}'] = each(lambda width: width // FACTOR, old)
            elif key == 'stacked_convs':
                small[f'model.{head}.{key}'] = 1
    if 'EoMT' in model.type:
        width = small['model.backbone.arch']['embed_dims']
        head = 'panoptic_head' if 'panoptic_head' in model else 'decode_head'
        small[f'model.{head}.embed_dims'] = width
        if 'square' in model.test_cfg:
            small['model.test_cfg.square'] = model.test_cfg.square // FACTOR
    if 'roi_head' in model:
        small |= roi_head_overrides(model.roi_head)
    return small


def each(change, values):
    """A number changed, or each of a list."""
    if isinstance(values, (list, tuple)):
        return [change(value) for value in values]
    return change(values)


def backbone_overrides(backbone: dict) -> dict:
    at, blocks = 'model.backbone', [1, 1, 2, 1]
    if backbone.type in ('CPVT', 'MultiScaleCPVT', 'PyramidCPVT'):
        return {f'{at}.arch': {'_delete_': True, **small_arch(backbone)}}
    if backbone.type == 'PyramidVisionTransformer':
        return {f'{at}.embed_dims': 64 // FACTOR, f'{at}.num_layers': blocks}
    if backbone.type == 'ResNet':
        return {f'{at}.base_channels': 64 // FACTOR}
    if 'backbone' in backbone:
        backbone, at = backbone.backbone, f'{at}.backbone'
    if 'arch' in backbone:  # mmpretrain's
        arch = dict(embed_dims=96 // FACTOR, depths=blocks, num_heads=[1, 2, 3, 4])
        return {f'{at}.arch': {'_delete_': True, **arch}}
    small = {f'{at}.depths': blocks}
    if 'SwinTransformer' in backbone.type:
        small[f'{at}.num_heads'] = [1, 2, 3, 4]
    widths = backbone.get('embed_dims', 96)
    return small | {f'{at}.embed_dims': each(lambda width: width // FACTOR, widths)}


def roi_head_overrides(roi_head: dict) -> dict:
    boxes = ['bbox_head']
    if isinstance(roi_head.bbox_head, list):
        boxes = [f'bbox_head.{i}' for i in range(len(roi_head.bbox_head))]
    small = {f'{head}.fc_out_channels': WIDTH for head in boxes} | {'mask_head.num_convs': 1}
    for head in (*boxes, 'mask_head'):
        small |= {f'{head}.in_channels': WIDTH, f'{head}.conv_out_channels': WIDTH}
    for extractor in ('bbox_roi_extractor', 'mask_roi_extractor'):
        small[f'{extractor}.out_channels'] = WIDTH
    return {f'model.roi_head.{key}': value for key, value in small.items()}


# Sizes of DETR, DINO and Mask2Former, by the name of the argument.
TRANSFORMER = dict(
    embed_dims=WIDTH,
    feedforward_channels=WIDTH,
    num_feats=16,
    num_layers=1,
    num_queries=20,
    num_dn_queries=10,
    max_per_img=20,
    num_points=64,
    out_channels=WIDTH,
    feat_channels=WIDTH,
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
    if str(node.get('type')).endswith('DINOHead'):
        small[f'{at}.embed_dims'] = TRANSFORMER['embed_dims']
    for index, augment in enumerate(node.get('batch_augments') or ()):
        small[f'{at}.batch_augments.{index}.size'] = shrink_size(augment.size)
    return small


def smaller_images(node):
    """The same pipeline for images an eighth as large, where they are larger than 330 px."""
    if isinstance(node, (list, tuple)):
        return [smaller_images(value) for value in node]
    if not isinstance(node, dict):
        return node
    sizes = {'scale', 'scales', 'crop_size', 'scale_factor'}
    if node.get('type') == 'Pad':
        sizes |= {'size'}
    return {
        key: shrink_size(value) if key in sizes else smaller_images(value)
        for key, value in node.items()
    }


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
    for key in ('dtype', 'use_fsdp', 'loss_scale'):
        cfg.optim_wrapper.pop(key, None)
    cfg.optim_wrapper.type = 'OptimWrapper'
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
            labels = dict(seg_map_path=self.labels_path, label_map=None, reduce_zero_label=False)
            return dict(img_path=self.image_path, seg_fields=[], **labels)
        height, width = self.height, self.width
        boxes = [[4, 4, width // 2, height // 2], [width // 3, height // 3, width - 4, height - 4]]
        instances = []
        for label, (x1, y1, x2, y2) in enumerate(boxes):
            outline = [[x1, y1, x2, y1, x2, y2, x1, y2]]
            one = dict(bbox=[x1, y1, x2, y2], bbox_label=label, ignore_flag=0, mask=outline)
            instances.append(one)
        size = dict(height=height, width=width, seg_map_path=self.labels_path)
        return dict(img_path=self.image_path, img_id=0, instances=instances, **size)


def batch(cfg: Config, which: str, scenes: list[Scene]) -> dict:
    """Scenes, processed by the pipeline of the config's dataset."""
    dataset = cfg[f'{which}_dataloader'].dataset
    dataset = dataset.dataset if dataset.type == 'RepeatDataset' else dataset
    steps = smaller_images([dict(step) for step in dataset.get('datasets', [dataset])[0].pipeline])
    if dataset.type == 'DecodedDataset':  # returns images, not paths
        steps.insert(0, dict(type='LoadImageFromFile'))
    for step in steps:
        if step['type'] == 'LoadPanopticAnnotations':  # of files that a scene has not
            step.clear()
            step.update(type='LoadAnnotations', with_bbox=True, with_mask=True, with_seg=True)
        # ADE20KDataset sets this key itself; the scenes come from no dataset.
        if step['type'] == 'LoadAnnotations':
            step.pop('reduce_zero_label', None)
    init_default_scope(cfg.default_scope)
    run = Compose(steps)
    return pseudo_collate([run(scene.raw(cfg.default_scope)) for scene in scenes])
