"""``init_cfg=dict(type='Pretrained', ...)``: foreign checkpoints in training, in testing, inside a
detector.
"""

import logging

import pytest
import torch
from mmengine.logging import MMLogger
from mmengine.model import BaseModel, PretrainedInit
from mmengine.registry import MODELS
from tiny import COLUMN, PYRAMID, assert_equal_outputs, max_difference, randomise

from cpvt_backbones import CPVT, PyramidCPVT
from cpvt_backbones.checkpoints import CheckpointError, export_state_dict

IMAGES = torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def source():
    return randomise(PyramidCPVT(arch=PYRAMID)).eval()


@pytest.fixture
def foreign(source, tmp_path):
    """A segmentor's checkpoint with mmseg's names."""
    state, _ = export_state_dict(source.state_dict(), source, to='mmseg')
    state = {f'backbone.{key}': value for key, value in state.items()} | {
        'decode_head.w': torch.ones(1)
    }
    torch.save(dict(state_dict=state), tmp_path / 'foreign.pth')
    return str(tmp_path / 'foreign.pth')


class Segmentor(BaseModel):
    def __init__(self, backbone, init_cfg=None):
        super().__init__(init_cfg=init_cfg)
        self.backbone = MODELS.build(backbone)

    def forward(self, inputs, mode='tensor'):
        return self.backbone(inputs)


def config(checkpoint, **kwargs):
    return dict(
        type='PyramidCPVT',
        arch=PYRAMID,
        init_cfg=dict(type='Pretrained', checkpoint=checkpoint, **kwargs),
    )


@pytest.mark.parametrize('prefix', [None, 'backbone', 'backbone.'])
@pytest.mark.parametrize('nested', [True, False])
def test_init_weights_loads_a_foreign_checkpoint(prefix, nested, source, foreign):
    cfg = config(foreign, **({} if prefix is None else dict(prefix=prefix)))
    model = Segmentor(cfg) if nested else MODELS.build(cfg)
    model.init_weights()
    assert_equal_outputs(model.eval()(IMAGES), source(IMAGES))
    backbone = model.backbone if nested else model
    for got, wanted in zip(backbone.fuse()(IMAGES), source(IMAGES), strict=True):
        assert max_difference(got, wanted) <= 1e-5


def test_forward_and_fuse_read_no_file(tmp_path):
    """As everywhere in mmengine, ``init_cfg`` takes effect in ``init_weights()`` and
    nowhere else.
    """
    model = MODELS.build(config(str(tmp_path / 'gone.pth'))).eval()
    random = {key: value.clone() for key, value in model.state_dict().items()}
    for got, wanted in zip(model.fuse()(IMAGES), model(IMAGES), strict=True):
        assert max_difference(got, wanted) <= 1e-5
    assert all(torch.equal(value, random[key]) for key, value in model.state_dict().items())
    with pytest.raises(FileNotFoundError, match=r'gone\.pth'):
        model.init_weights()


def test_types_lists_and_other_initialisers(source, foreign):
    cfg = config(foreign)
    cfg['init_cfg'] = [
        dict(type=PretrainedInit, checkpoint=foreign, map_location='cpu'),
        dict(type='Constant', layer=['Conv2d', 'Linear'], val=1.0),
    ]
    model = MODELS.build(cfg)
    model.init_weights()
    assert_equal_outputs(model.eval()(IMAGES), source(IMAGES))
    assert model.init_cfg == cfg['init_cfg']


def test_init_weights_after_a_failed_one_loads(source, foreign, tmp_path):
    file = tmp_path / 'later.pth'
    model = MODELS.build(config(str(file))).eval()
    with pytest.raises(FileNotFoundError):
        model.init_weights()
    file.symlink_to(foreign)
    model.init_weights()
    assert_equal_outputs(model(IMAGES), source(IMAGES))


def test_incomplete_checkpoint_is_refused(tmp_path):
    position = dict(type='PEG')
    trunk = randomise(CPVT(arch=COLUMN, position=position))
    state = {key: value for key, value in trunk.state_dict().items() if not key.startswith('norm.')}
    torch.save(state, tmp_path / 'part.pth')
    init_cfg = dict(type='Pretrained', checkpoint=str(tmp_path / 'part.pth'))
    cfg = dict(type='MultiScaleCPVT', arch=COLUMN, position=position, with_cls_token=True)
    with pytest.raises(CheckpointError, match='lacks 2 keys of the model: norm.weight, norm.bias'):
        MODELS.build(dict(cfg, init_cfg=init_cfg)).init_weights()
    model = MODELS.build(dict(cfg, init_cfg=init_cfg, final_norm=False))
    model.init_weights()
    assert torch.equal(model.blocks[0].attn.qkv.weight, trunk.blocks[0].attn.qkv.weight)


@pytest.fixture
def deit(tmp_path):
    """A checkpoint without a PEG, whose norms have the values that every model starts with."""
    torch.save(CPVT(arch=COLUMN, position=None).state_dict(), tmp_path / 'deit.pth')
    return str(tmp_path / 'deit.pth')


def test_a_backbone_alone_does_not_list_its_parameters(deit, monkeypatch):
    logger, told = MMLogger.get_current_instance(), []
    monkeypatch.setattr(logger, 'handlers', [logging.StreamHandler()])
    monkeypatch.setattr(logger, 'handle', told.append)
    CPVT(arch=COLUMN, init_cfg=deit).init_weights()
    (message,) = [one.getMessage() for one in told if one.levelno >= logging.INFO]
    assert message.startswith(f'load {deit}: ')


def test_the_list_in_the_file_of_a_log_is_true(deit, tmp_path, monkeypatch):
    handler = logging.FileHandler(tmp_path / 'train.log')
    monkeypatch.setattr(MMLogger.get_current_instance(), 'handlers', [handler])
    CPVT(arch=COLUMN, init_cfg=deit).init_weights()
    handler.close()
    lines = (tmp_path / 'train.log').read_text().splitlines()
    listed = {line.partition(' - ')[0]: lines[i + 1] for i, line in enumerate(lines[:-1])}
    assert listed['blocks.0.norm1.weight'].strip() == f'loaded from {deit}', 'its mean is 1 before'
    assert 'starts as the identity' in listed['pos_block.0.proj.0.weight']


def test_a_name_or_a_file_as_init_cfg(foreign, source):
    model = PyramidCPVT(arch=PYRAMID, init_cfg=foreign)
    model.init_weights()
    assert_equal_outputs(model.eval()(IMAGES), source(IMAGES))
    shipped = CPVT(arch='tiny', with_cls_token=False, init_cfg='no_such_weights')
    with pytest.raises(
        FileNotFoundError,
        match="'no_such_weights', and no weights of that name come with the package",
    ):
        shipped.init_weights()
