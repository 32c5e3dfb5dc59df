"""mmengine opens files by ``read_checkpoint``: ``load_from``, ``resume``, names of its
model zoo.
"""

import json
import pathlib
from argparse import Namespace

import numpy as np
import pytest
import torch
from mmengine.config import ConfigDict
from mmengine.dataset import DefaultSampler
from mmengine.logging import HistoryBuffer
from mmengine.model import BaseModel
from mmengine.runner import CheckpointLoader, Runner
from torch import nn
from torch.utils.data import DataLoader

from cpvt_backbones.checkpoints import (
    CheckpointError,
    mmengine_loader,
    read_checkpoint,
    write_checkpoint,
)


class Regression(BaseModel):
    def __init__(self):
        super().__init__()
        self.layer = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))

    def forward(self, inputs, mode):
        return dict(loss=self.layer(inputs).square().mean())


CHECKPOINT = dict(type='CheckpointHook', interval=1, by_epoch=False, save_best=None)


def make_runner(folder, iterations, *, model=None, checkpoint=CHECKPOINT, **options):
    torch.manual_seed(0)
    data = [
        dict(inputs=torch.randn(3, generator=torch.Generator().manual_seed(i))) for i in range(4)
    ]
    return Runner(
        model or Regression(),
        str(folder),
        train_dataloader=DataLoader(
            data, batch_size=2, sampler=DefaultSampler(data, shuffle=False)
        ),
        train_cfg=dict(by_epoch=False, max_iters=iterations),
        optim_wrapper=dict(optimizer=dict(type='AdamW', lr=0.1)),
        param_scheduler=[dict(type='LinearLR', start_factor=0.1, end=4, by_epoch=False)],
        custom_hooks=[dict(type='EMAHook')],
        default_hooks=dict(
            checkpoint=checkpoint,
            logger=dict(type='LoggerHook', interval=1),
        ),
        randomness=dict(seed=0),
        default_scope='mmengine',
        log_level='ERROR',
        experiment_name=f'{folder.name}_{iterations}_{len(options)}',
        **options,
    )


def test_plain_data_is_restored_and_other_objects_are_none(tmp_path):
    """The result can be stored and read again."""

    def load(name):
        return CheckpointLoader.load_checkpoint(str(tmp_path / name), logger='silent')

    array, shared = np.arange(6, dtype='>i2').reshape(2, 3), [1, dict(a=(2, np.float32(1)))]
    objects = dict(args=Namespace(a=1), words=np.array(['a'], dtype=object))
    plain = dict(model={}, nothing=b'', some=b'x', part=slice(1, None), one=shared, two=[shared])
    log = HistoryBuffer([1.0, 2.0], [1, 3])
    others = dict(array=array.T, flag=np.bool_(1), log=log, meta=ConfigDict(classes=['a']))
    torch.save(objects | plain | others | dict(where=pathlib.Path('a/b')), tmp_path / 'w.pth')
    found = load('w.pth')
    assert {key: found[key] for key in objects} == dict.fromkeys(objects)
    assert {key: found[key] for key in plain} == plain and found['two'][0] is found['one']
    assert found['array'].dtype == array.dtype and np.array_equal(found['array'], array.T)
    assert isinstance(found['flag'], np.bool_) and found['flag']
    assert isinstance(found['log'], HistoryBuffer) and found['log'].mean() == pytest.approx(0.75)
    assert type(found['meta']) is dict and found['meta'] == dict(classes=['a'])
    torch.save(found, tmp_path / 'again.pth')
    assert found['where'] == load('again.pth')['where'] == 'a/b'


@pytest.mark.parametrize('suffix', ['.pth', '.safetensors'])
def test_load_from(suffix, tmp_path):
    if suffix == '.safetensors':
        pytest.importorskip('safetensors')
    wanted = Regression().state_dict()
    write_checkpoint(wanted, tmp_path / f'w{suffix}', meta={})
    runner = make_runner(tmp_path / 'run', 1, load_from=str(tmp_path / f'w{suffix}'))
    runner.call_hook('before_run')
    runner.load_or_resume()
    assert all(torch.equal(value, wanted[key]) for key, value in runner.model.state_dict().items())


@pytest.mark.parametrize(
    'name', ['torchvision://resnet18', 'open-mmlab://tiny', 'mmcls://vgg11', 'open-mmlab://local']
)
def test_names_of_model_zoos(name, tmp_path, monkeypatch):
    """Names stand for addresses or files in the folder of mmengine.

    `mmcls://` gives the backbone of a classifier.
    """
    monkeypatch.setenv('MMENGINE_HOME', str(tmp_path))
    state = {'backbone.weight': torch.ones(2), 'head.weight': torch.ones(1)}
    torch.save(dict(state_dict=state), tmp_path / 'tiny.pth')
    own = dict(local='tiny.pth', tiny='https://example.org/tiny.pth')
    (tmp_path / 'open_mmlab.json').write_text(json.dumps(own))
    fetched = []
    monkeypatch.setattr(
        'cpvt_backbones.checkpoints.reading.finding.fetch',
        lambda address: fetched.append(address) or tmp_path / 'tiny.pth',
    )
    found = CheckpointLoader.load_checkpoint(name, logger='silent')['state_dict']
    assert set(found) == ({'weight'} if name.startswith('mmcls') else set(state))
    assert len(fetched) == (name != 'open-mmlab://local')
    part = dict(torchvision='resnet18-', mmcls='vgg11_').get(name.partition('://')[0], '')
    assert all(one.startswith('https://') and part in one for one in fetched)
    with pytest.raises(CheckpointError, match=r"mmengine knows no model '.*://none'"):
        CheckpointLoader.load_checkpoint(name.partition('://')[0] + '://none', logger='silent')


def test_an_address_with_another_in_it(monkeypatch):
    """The scheme is what comes before the first ``://``."""
    asked = []
    monkeypatch.setattr(mmengine_loader, 'read_checkpoint', lambda name: asked.append(name) or {})
    address = 'https://my-s3-proxy.org/get?file=https://host/a.pth'
    mmengine_loader.load_from_cpvt_backbones(address)
    assert asked == [address]


def test_every_scheme_of_mmengine_is_replaced():
    assert set(CheckpointLoader._schemes.values()) == {mmengine_loader.load_from_cpvt_backbones}
    with pytest.raises(
        CheckpointError,
        match=r"must be a file, a folder, an https:// address, or timm://NAME, .* got 'pavi://a'",
    ):
        CheckpointLoader.load_checkpoint('pavi://a', logger='silent')


def test_a_checkpoint_is_written_through_no_link(tmp_path):
    """A work directory may be shared; parts that a killed run left are deleted."""
    folder, victim = tmp_path / 'run', tmp_path / 'victim'
    folder.mkdir()
    victim.write_text('precious')
    for name in ('.iter_1.pth.part', '.iter_1.pth.0a1b2c3d.part', '.iter_2.pth.0a1b2c3d.part'):
        (folder / name).symlink_to(victim)
    hook = dict(type='DurableCheckpointHook', interval=1, by_epoch=False)
    runner = make_runner(folder, 2, checkpoint=hook)
    runner.train()
    assert victim.read_text() == 'precious'
    assert read_checkpoint(folder / 'iter_2.pth')['meta']['iter'] == 2
    assert not (folder / 'iter_2.pth').is_symlink()
    assert [path.name for path in folder.glob('.*.part')] == ['.iter_1.pth.part']
