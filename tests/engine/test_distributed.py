"""Two processes, or two nodes, train what one process trains on a batch twice as large."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.full

ROOT = Path(__file__).resolve().parents[2]
BACKBONES = {
    'multi_scale': """dict(type='MultiScaleCPVT', patch_size=8,
        arch=dict(embed_dims=32, depth=3, num_heads=2, mlp_ratio=2.0),
        position=dict(type='PEG', after_blocks=(0, 1)), window_size=3, global_blocks=(1,))""",
    'pyramid': """dict(type='PyramidCPVT',
        arch=dict(depths=(1, 2, 1, 1), embed_dims=(8, 16, 16, 24), num_heads=(1, 2, 2, 3),
            mlp_ratios=(2.0,) * 4, sr_ratios=(4, 2, 2, 1)))""",
}
CHANNELS = {'multi_scale': [16, 32, 32, 32], 'pyramid': [8, 16, 16, 24]}
CONFIG = """
_base_ = [
    '{configs}/_base_/models/semantic_fpn.py',
    '{configs}/_base_/schedules/adamw.py',
    '{configs}/_base_/runtime/mmseg.py',
]
custom_imports = dict(imports=['cpvt_backbones', 'tiny_runs', 'double_precision'])
model = dict(
    backbone={backbone},
    neck=dict(in_channels={channels}, out_channels=32),
    decode_head=dict(in_channels=[32] * 4, channels=32, num_classes=3, dropout_ratio=0))
train_dataloader = dict(
    batch_size={batch_size}, num_workers=0, sampler=dict(type='InfiniteSampler', shuffle=True),
    dataset=dict(type='Pictures', scope='mmseg'))
val_cfg = test_cfg = None
# Not AdamW: it divides by the size of a gradient, which may be a rounding error.
optim_wrapper = dict(optimizer=dict(_delete_=True, type='SGD', lr=0.1, momentum=0.9,
    weight_decay=0.05),
                     clip_grad=dict(max_norm=1.0))
param_scheduler = [dict(type='LinearLR', start_factor=0.1, by_epoch=False, begin=0, end=2)]
train_cfg = dict(type='IterBasedTrainLoop', max_iters=4)
default_hooks = dict(checkpoint=dict(interval=4))
randomness = dict(seed=0)
"""


@pytest.mark.parametrize('name', BACKBONES)
def test_two_processes_are_one_with_twice_the_batch(name, train, tmp_path):
    pytest.importorskip('mmseg')
    weights = {}
    for run, (processes, batch_size) in {'two': (2, 2), 'one': (1, 4), 'half': (1, 2)}.items():
        config = tmp_path / f'{run}.py'
        values = dict(configs=ROOT / 'configs', backbone=BACKBONES[name], channels=CHANNELS[name])
        config.write_text(CONFIG.format(**values, batch_size=batch_size))
        train('mmseg', config, '--work-dir', tmp_path / run, processes=processes)
        weights[run] = torch.load(tmp_path / run / 'iter_4.pth', weights_only=False)['state_dict']

    def distance(left, right):
        assert weights[left].keys() == weights[right].keys()
        return {k: (v - weights[right][k]).abs().max().item() for k, v in weights[left].items()}

    assert {value.dtype for value in weights['two'].values()} == {torch.float64}
    # fp64 rounds by 1e-16; four steps amplify that a thousandfold, not a millionfold.
    assert max(distance('two', 'one').values()) < 1e-10
    # One process that hears nothing of the other would end here.
    assert max(distance('two', 'half').values()) > 1e-3


def test_cpus_train_a_config_of_gpus(train, tmp_path):
    """SyncBN would need a GPU; without the config's option, unused parameters would be an error."""
    pytest.importorskip('mmseg')
    config = tmp_path / 'config.py'
    values = dict(configs=ROOT / 'configs', batch_size=2)
    values |= dict(backbone=BACKBONES['pyramid'], channels=CHANNELS['pyramid'])
    head = 'norm_cfg=dict(_delete_=True, type="SyncBN"), in_index=[0, 1, 2]'
    head += ', in_channels=[32] * 3, feature_strides=[4, 8, 16]'
    more = f'model["decode_head"].update({head})\nfind_unused_parameters = True\n'
    config.write_text(CONFIG.format(**values) + more)
    train('mmseg', config, '--work-dir', tmp_path / 'work', processes=2)
    weights = torch.load(tmp_path / 'work/iter_4.pth', weights_only=False)['state_dict']
    counts = {value.item() for name, value in weights.items() if 'num_batches' in name}
    assert counts == {4}


@pytest.mark.slow
def test_two_nodes_train_as_two_processes(train, tmp_path):
    """Two torchruns that meet at an address, here of one machine."""
    pytest.importorskip('mmseg')
    config = tmp_path / 'config.py'
    values = dict(configs=ROOT / 'configs', batch_size=2)
    values |= dict(backbone=BACKBONES['pyramid'], channels=CHANNELS['pyramid'])
    config.write_text(CONFIG.format(**values))
    train('mmseg', config, '--work-dir', tmp_path / 'processes', processes=2)

    with socket.socket() as probe:
        probe.bind(('127.0.0.1', 0))
        port = str(probe.getsockname()[1])
    path = os.pathsep.join([str(ROOT), str(ROOT / 'tests/engine')])
    environment = dict(os.environ, PYTHONPATH=path, PYTHON=sys.executable, PORT=port)
    environment |= dict(OMP_NUM_THREADS='1', NNODES='2', CUDA_VISIBLE_DEVICES='')
    command = [ROOT / 'tools/dist_train.sh', config, '1', '--work-dir', tmp_path / 'nodes']
    nodes = [subprocess.Popen(command, env=dict(environment, NODE_RANK=rank)) for rank in '01']
    assert [process.wait() for process in nodes] == [0, 0]
    one, two = (torch.load(tmp_path / run / 'iter_4.pth', weights_only=False)['state_dict']
                for run in ('processes', 'nodes'))  # fmt: skip
    assert one.keys() == two.keys()
    assert max((one[name] - two[name]).abs().max().item() for name in one) < 1e-10
