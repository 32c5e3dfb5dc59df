"""The options of configs/_base_/options: average, compilation, sharded training, DeepSpeed."""

import inspect
import json
from pathlib import Path

import pytest
import torch
from mmengine.config import Config
from mmengine.registry import MODEL_WRAPPERS, OPTIM_WRAPPERS, STRATEGIES

from cpvt_backbones import MultiScaleCPVT
from cpvt_backbones.toolboxes import read_config

ROOT = Path(__file__).resolve().parents[2]
OPTIONS = ROOT / 'configs' / '_base_' / 'options'
# A shipped detection config with a small model, on generated pictures.
SMALL_DETECTOR = """
custom_imports = dict(imports=['cpvt_backbones', 'tiny_runs', 'double_precision'])
env_cfg = dict(dist_cfg=dict(backend='gloo'))
model = dict(
    backbone=dict(
        init_cfg=None, drop_path_rate=0.0,
        arch=dict(_delete_=True, embed_dims=32, depth=5, num_heads=2, mlp_ratio=2.0)),
    neck=dict(in_channels=[16, 32, 32], out_channels=32),
    bbox_head=dict(in_channels=32, feat_channels=32, stacked_convs=1, num_classes=3))
train_dataloader = dict(
    _delete_=True, batch_size=2, num_workers=0, sampler=dict(type='InfiniteSampler', shuffle=True),
    dataset=dict(type='Pictures', scope='mmdet'))
val_cfg = test_cfg = val_dataloader = test_dataloader = val_evaluator = test_evaluator = None
train_cfg = dict(_delete_=True, type='IterBasedTrainLoop', max_iters=3)
param_scheduler = [dict(type='LinearLR', start_factor=0.1, by_epoch=False, begin=0, end=2)]
default_hooks = dict(checkpoint=dict(by_epoch=False, interval=2, max_keep_ckpts=-1))
custom_hooks = [dict(type='Notes')]
log_processor = dict(by_epoch=False)
randomness = dict(seed=0)
"""
DETECTORS = ROOT / 'configs' / 'retinanet'
FSDP = DETECTORS / 'retinanet_multiscale-cpvt-b_fpn_1x_coco_fsdp.py'
DEEPSPEED = DETECTORS / 'retinanet_multiscale-cpvt-b_fpn_1x_coco_deepspeed.py'


def saved(folder, iteration):
    return torch.load(folder / f'iter_{iteration}.pth', weights_only=False)


def furthest(left, right):
    assert left.keys() == right.keys()
    return max((left[key] - right[key]).abs().max().item() for key in left)


# -- compilation
# --------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ('windows', 'graphs'),
    # Windows that pad rows, columns, both or neither have graphs of their own.
    [(dict(), 3), (dict(window_size=3, global_blocks=(1,)), 5)],
    ids=['global', 'windows'],
)
def test_the_compile_option_takes_any_size(windows, graphs):
    from torch._dynamo.utils import counters

    options = Config.fromfile(OPTIONS / 'compile.py').compile
    torch.compiler.reset()
    torch.manual_seed(0)
    arch = dict(embed_dims=32, depth=2, num_heads=2, mlp_ratio=2.0)
    model = MultiScaleCPVT(
        arch=arch, position=dict(type='PEG', after_blocks=(0, 1)), out_indices=(1, 2), **windows
    )

    def loss(images):
        return sum(output.square().mean() for output in model(images))

    compiled = torch.compile(loss, fullgraph=True, **options)
    before = counters['stats']['unique_graphs']
    for size in ((96, 96), (112, 160), (97, 131), (160, 112), (144, 144), (250, 90)):
        images = torch.randn(2, 3, *size)
        gradients = []
        for run in (compiled, loss):
            model.zero_grad()
            run(images).backward()
            gradients.append({name: parameter.grad for name, parameter in model.named_parameters()})
        assert furthest(*gradients) < 1e-4
    assert counters['stats']['unique_graphs'] - before <= graphs
    torch.compiler.reset()


# -- sharded
# --------------------------------------------------------------------------------------------------


def sharded_config(folder):
    """The shipped config less what needs a GPU: bf16 by autocast, and states moved from a GPU to
    the CPU when saved.
    """
    config = folder / 'sharded.py'
    config.write_text(
        f"_base_ = '{FSDP}'\n"
        + SMALL_DETECTOR
        # Not AdamW: without the move to the CPU, torch saves its second average in place of both.
        + "optim_wrapper = dict(_delete_=True, type='OptimWrapper',"
        ' clip_grad={{_base_.optim_wrapper.clip_grad}},\n   '
        " paramwise_cfg={{_base_.optim_wrapper.paramwise_cfg}},\n    optimizer=dict(type='SGD',"
        ' lr=0.1, momentum=0.9, weight_decay=0.05))\nstrategy ='
        " dict(model_wrapper=dict(device_id='cpu'), state_dict_cfg=dict(\n    _delete_=True,"
        " state_dict_type='FULL_STATE_DICT',\n   "
        " state_dict_config=dict(type='FullStateDictConfig', rank0_only=True),\n   "
        " optim_state_dict_config=dict(type='FullOptimStateDictConfig', rank0_only=True)))\n"
    )
    return config


@pytest.mark.full
def test_sharded_training_is_plain_training(train, tmp_path):
    pytest.importorskip('mmdet')
    config = sharded_config(tmp_path)
    plain = tmp_path / 'plain.py'
    plain.write_text(
        "_base_ = 'sharded.py'\nstrategy = None\n"
        'model_wrapper_cfg = dict(device_ids=None, broadcast_buffers=False)\n'
    )
    train('mmdet', config, '--work-dir', tmp_path / 'sharded', processes=2)
    train('mmdet', plain, '--work-dir', tmp_path / 'plain', processes=2)
    expected, actual = saved(tmp_path / 'plain', 3), saved(tmp_path / 'sharded', 3)
    assert furthest(expected['state_dict'], actual['state_dict']) < 1e-10

    # -- each process has its half of the weights, one unit a block
    notes = [
        json.loads((tmp_path / 'sharded' / f'notes_{rank}.json').read_text()) for rank in (0, 1)
    ]
    for note in notes:
        assert note['runner'] == 'ResumableFlexibleRunner'
        assert note['units'] == ['RetinaNet'] + ['Block'] * 5
    whole = json.loads((tmp_path / 'plain' / 'notes_0.json').read_text())
    assert whole['runner'] == 'QuietRunner'
    halves = [note['weights_in_optimizer'] for note in notes]
    assert sum(halves) == whole['weights_in_optimizer']
    assert max(halves) < 0.6 * sum(halves)

    # -- weight decay as in plain training, parameter by parameter
    decay = {
        name: group['weight_decay']
        for group in actual['optimizer']['param_groups']
        for name in group['params']
    }
    # The grid of the table is a buffer.
    names = [name for name in expected['state_dict'] if 'pos_embed.grid_' not in name]
    plain_decay = [
        group['weight_decay']
        for group in expected['optimizer']['param_groups']
        for _ in group['params']
    ]
    assert decay == dict(zip(names, plain_decay, strict=True))
    assert {decay[name] for name in names if 'pos_block' in name or name.endswith('bias')} == {0.0}
    assert decay['backbone.blocks.0.attn.qkv.weight'] == 0.05


# -- what mmengine takes
# -----------------------------------------------------------------------------------------------


def accepted(cls):
    """Names that a class takes, those of its parents too where it hands on what it does not
    know.
    """
    names = set()
    for parent in cls.__mro__:
        if '__init__' not in vars(parent):
            continue
        parameters = inspect.signature(parent.__init__).parameters.values()
        names |= {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
        if not any(p.kind == p.VAR_KEYWORD for p in parameters):
            break
    return names - {'self'}


@pytest.mark.parametrize('path', [FSDP, DEEPSPEED], ids=lambda path: path.stem.rpartition('_')[2])
def test_mmengine_takes_every_argument(path):
    pytest.importorskip('mmdet')
    cfg = read_config(path)
    assert cfg.runner_type == 'ResumableRunner'
    strategy = STRATEGIES.get(cfg.strategy.type)
    assert set(cfg.strategy) - {'type'} <= accepted(strategy)
    for wrapper in [cfg.strategy.model_wrapper] if 'model_wrapper' in cfg.strategy else []:
        default = MODEL_WRAPPERS.get('MMFullyShardedDataParallel')
        assert set(wrapper) <= accepted(default)
    # `constructor` and `paramwise_cfg` are taken out before the wrapper is built.
    wrapper = OPTIM_WRAPPERS.get(cfg.optim_wrapper.type)
    assert set(cfg.optim_wrapper) - {'type', 'constructor', 'paramwise_cfg'} <= accepted(wrapper)
    # FSDP's gradients are in parts; mmengine would clip each by its own norm.
    assert path != FSDP or cfg.optim_wrapper.clip_grad is None
    base = read_config(DETECTORS / 'retinanet_multiscale-cpvt-b_fpn_1x_coco.py')
    for part in ('optimizer', 'paramwise_cfg'):
        assert cfg.optim_wrapper[part] == base.optim_wrapper[part]


@pytest.mark.slow
def test_deepspeed_trains_and_resumes(train, tmp_path):
    """Needs `pip install 'deepspeed<0.19.7'`; its first run compiles an operator, for minutes."""
    pytest.importorskip('deepspeed')
    pytest.importorskip('mmdet')
    config = tmp_path / 'config.py'
    config.write_text(f"_base_ = '{DEEPSPEED}'\n{SMALL_DETECTOR}")
    work_dir = tmp_path / 'work'
    train(
        'mmdet',
        config,
        '--work-dir',
        work_dir,
        '--cfg-options',
        'train_cfg.max_iters=2',
        processes=2,
    )
    train('mmdet', config, '--work-dir', work_dir, '--resume', processes=2)
    states = [
        torch.load(work_dir / f'iter_{n}.pth' / 'mp_rank_00_model_states.pt', weights_only=False)[
            'module'
        ]
        for n in (2, 3)
    ]
    assert all(value.dtype == torch.bfloat16 for value in states[0].values())
    assert 0 < furthest(*states) < 0.1
