"""Resolved configs have the values of the published recipes, which recipes.yaml lists once."""

import re
from functools import cache
from pathlib import Path

import pytest
import yaml
from mmengine.config import Config

ROOT = Path(__file__).resolve().parents[2]
TABLE = yaml.safe_load(Path(__file__).with_name('recipes.yaml').read_text('utf-8'))
RECIPES = TABLE['recipes']
FOLDERS = ('imagenet', 'retinanet', 'mask_rcnn', 'semantic_fpn', 'upernet', 'detr', 'vitdet')
NAMES = {
    str(path.relative_to(ROOT / 'configs').with_suffix('')): path
    for folder in FOLDERS
    for path in sorted((ROOT / 'configs' / folder).rglob('*.py'))
}


@cache
def read(name):
    return Config.fromfile(NAMES[name], import_custom_modules=False)


def recipe_of(name):
    """The one recipe whose pattern matches the name of a config."""
    found = [key for key, one in RECIPES.items() if re.fullmatch(one['configs'], name)]
    assert len(found) == 1, f'{name} has the recipes {found}'
    return RECIPES[found[0]]


def text(value):
    """A value as the table writes it."""
    if isinstance(value, dict):
        items = (f'{key}={text(one)}' for key, one in value.items() if key != '_scope_')
        return f'{{{", ".join(items)}}}'
    if isinstance(value, (list, tuple)):
        return f'[{", ".join(map(text, value))}]'
    return str(value)


def transform(step):
    """``Type(argument=value, ...)`` of a step of a pipeline."""
    left_out = ('type', '_scope_', 'backend_args', 'meta_keys', 'policies')
    items = [f'{key}={text(step[key])}' for key in sorted(step) if key not in left_out]
    return f'{step["type"]}({", ".join(items)})' if items else step['type']


def schedule(one, rate):
    """A parameter scheduler in a line."""
    unit = 'epoch' if one.get('by_epoch', True) else 'iteration'
    kind = one['type']
    if kind == 'LinearLR':
        start = f'x {one.start_factor:.4g}'  # the mm packages give a ratio, DeiT's code a rate
        if unit == 'epoch':
            start = f'from {one.start_factor * rate:.4g}'
        return f'{kind} {start} until {unit} {one.end}'
    if kind == 'ConstantLR':
        return f'{kind} {one.factor} until {unit} {one.end}'
    if kind == 'MultiStepLR':
        return f'{kind} x {one.gamma} after {unit}s {list(one.milestones)}'
    if kind == 'CosineAnnealingLR':
        return f'{kind} from {unit} {one.begin} to {one.eta_min:.4g}'
    assert kind == 'PolyLR'
    return f'{kind} {one.power} from {unit} {one.begin} to {one.eta_min:.4g}'


def length(cfg):
    loop = cfg.train_cfg
    if 'max_iters' in loop:
        return f'{loop.max_iters} iterations'
    return f'{loop.max_epochs} epochs'


def average(cfg):
    hooks = [hook for hook in cfg.get('custom_hooks') or () if 'EMA' in hook['type']]
    return f'{hooks[0]["type"]} {hooks[0]["momentum"]}' if hooks else 'none'


def mixing(cfg):
    augments = (cfg.model.get('train_cfg') or {}).get('augments') or ()
    return [f'{one.type} {one.alpha}' for one in augments] or 'none'


def backbone_of(cfg):
    backbone = cfg.model.backbone
    return backbone.backbone if backbone['type'] == 'WithPEG' else backbone


def pipeline(loader):
    """The steps of a data set, in a wrapper that repeats it or not."""
    dataset = loader.dataset
    while 'dataset' in dataset:
        dataset = dataset.dataset
    return [transform(step) for step in dataset.pipeline]


def facts(cfg):
    """What the table has of a recipe."""
    wrapper = cfg.optim_wrapper
    optimizer = wrapper.optimizer
    paramwise = wrapper.get('paramwise_cfg', {})
    betas = f', betas {list(optimizer.betas)}' if 'betas' in optimizer else ''
    keys = paramwise.get('custom_keys', {})
    return dict(
        optimizer=f'{optimizer.type}{betas}',
        batch=cfg.auto_scale_lr.base_batch_size,
        rate=optimizer.lr,
        length=length(cfg),
        schedule=[schedule(one, optimizer.lr) for one in cfg.param_scheduler],
        weight_decay=optimizer.weight_decay,
        no_decay=sorted(key for key, one in keys.items() if one.get('decay_mult') == 0),
        clip=(wrapper.get('clip_grad') or {}).get('max_norm', 'none'),
        layer_decay=paramwise.get('layer_decay_rate', 'none'),
        drop_path=backbone_of(cfg).get('drop_path_rate', 'none'),
        sampler=cfg.train_dataloader.sampler.type,
        mixing=mixing(cfg),
        label_smoothing=cfg.model.get('head', {}).get('loss', {}).get('label_smooth_val', 'none'),
        ema=average(cfg),
        train=pipeline(cfg.train_dataloader),
        test=pipeline(cfg.test_dataloader),
    )


def expected(name):
    """The facts of a config by the table."""
    recipe = recipe_of(name)
    wanted = dict(recipe['facts'])
    for part, changes in recipe.get('except', {}).items():
        if part in name:
            wanted |= changes
    images, rate = wanted['rate']
    wanted['rate'] = pytest.approx(rate * wanted['batch'] / images)
    if 'no_decay' in wanted:
        wanted['no_decay'] = sorted(wanted['no_decay'])
    if 'drop_path' in wanted:
        wanted['drop_path'] = wanted['drop_path'][size_of(name)]
    return wanted


def size_of(name):
    if 'swin' in name:
        return 'swin'
    letter = re.search(r'(?:cpvt|deit|pvt)-([tsbl])', name)[1]
    return dict(t='tiny', s='small', b='base', l='large')[letter]


@pytest.mark.parametrize('name', NAMES)
def test_config_has_the_values_of_its_recipe(name):
    cfg = read(name)
    found = facts(cfg)
    for key, value in expected(name).items():
        assert found[key] == value, f'{name}: {key}'
    written = re.search(r'8xb(\d+)', name)
    assert found['batch'] == 8 * (int(written[1]) if written else 2)
    assert found['batch'] == 8 * cfg.train_dataloader.batch_size


def test_norms_and_biases_have_no_decay_where_the_recipe_says_so():
    for name in NAMES:
        if 'no_decay' in recipe_of(name)['facts']:
            paramwise = read(name).optim_wrapper.paramwise_cfg
            assert paramwise.norm_decay_mult == paramwise.bias_decay_mult == 0.0, name


@pytest.mark.parametrize('name', TABLE['encodings'])
def test_ablation_has_the_encoding_of_the_papers_table(name):
    found = [path for path in NAMES if re.fullmatch(rf'imagenet/(.*/)?{name}_8xb\d+_in1k', path)]
    assert found
    for path in found:
        position = read(path).model.backbone.position
        assert text(position) == text(TABLE['encodings'][name]), path


def test_recipe_names_its_source_and_has_configs():
    for key, recipe in RECIPES.items():
        assert recipe['source'], key
        assert any(re.fullmatch(recipe['configs'], name) for name in NAMES), key
