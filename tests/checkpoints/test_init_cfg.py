"""``init_cfg=dict(type='Pretrained', ...)``: foreign checkpoints in training, in testing, inside a detector."""

import copy

import pytest
import torch
from mmengine.model import BaseModel, PretrainedInit
from mmengine.registry import MODELS
from zoo import COLUMN, PYRAMID, assert_equal_outputs, max_difference, randomise

from cpvt_backbones import CPVT, MultiScaleCPVT, PyramidCPVT
from cpvt_backbones.checkpoints import CheckpointError, export_state_dict

IMAGES = torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def source():
    return randomise(PyramidCPVT(arch=PYRAMID)).eval()


@pytest.fixture
def foreign(source, tmp_path):
    """A segmentor's checkpoint with mmseg's names."""
    state, _ = export_state_dict(source.state_dict(), source, to='mmseg')
    state = {f'backbone.{key}': value for key, value in state.items()} | {'decode_head.w': torch.ones(1)}
    torch.save(dict(state_dict=state), tmp_path / 'foreign.pth')
    return str(tmp_path / 'foreign.pth')


class Segmentor(BaseModel):
    def __init__(self, backbone, init_cfg=None):
        super().__init__(init_cfg=init_cfg)
        self.backbone = MODELS.build(backbone)

    def forward(self, inputs, mode='tensor'):
        return self.backbone(inputs)


def config(checkpoint, **kwargs):
    return dict(type='PyramidCPVT', arch=PYRAMID, init_cfg=dict(type='Pretrained', checkpoint=checkpoint, **kwargs))


def test_a_fused_copy_has_the_promised_weights(source, foreign):
    model = MODELS.build(config(foreign))
    for got, wanted in zip(model.fuse()(IMAGES), source(IMAGES), strict=True):
        assert max_difference(got, wanted) <= 1e-5
    assert_equal_outputs(model.eval()(IMAGES), source(IMAGES))


@pytest.mark.parametrize('prefix', [None, 'backbone', 'backbone.'])
@pytest.mark.parametrize('nested', [True, False])
@pytest.mark.parametrize('called', [True, False], ids=['init_weights', 'first_forward'])
def test_a_foreign_checkpoint(prefix, nested, called, source, foreign):
    """Runner.train calls `init_weights`; Runner.test and plain PyTorch do not."""
    cfg = config(foreign, **({} if prefix is None else dict(prefix=prefix)))
    model = Segmentor(cfg) if nested else MODELS.build(cfg)
    if called:
        model.init_weights()
    assert_equal_outputs(model.eval()(IMAGES), source(IMAGES))


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


def test_it_is_loaded_once(source, foreign):
    model = MODELS.build(config(foreign)).eval()
    model(IMAGES)
    torch.nn.init.zeros_(model.patch_embeds[0].proj.weight)
    changed = model(IMAGES)
    with pytest.raises(AssertionError):
        assert_equal_outputs(changed, source(IMAGES))
    twin = copy.deepcopy(model)
    assert_equal_outputs(twin(IMAGES), changed)
    model.init_weights()  # mmengine warns and leaves it
    assert_equal_outputs(model(IMAGES), changed)


def test_weights_that_came_otherwise_stay(source, tmp_path):
    """As Runner.test with `load_from`: the file of `init_cfg` need not even be there."""
    from mmengine.runner import load_checkpoint, save_checkpoint

    model = Segmentor(config(str(tmp_path / 'gone.pth')))
    whole = Segmentor(dict(type='PyramidCPVT', arch=PYRAMID))
    whole.backbone.load_state_dict(source.state_dict())
    save_checkpoint(dict(state_dict=whole.state_dict()), str(tmp_path / 'whole.pth'))
    load_checkpoint(model, str(tmp_path / 'whole.pth'))
    assert_equal_outputs(model.eval()(IMAGES), source(IMAGES))


def test_a_head_s_checkpoint_is_not_the_backbone_s(foreign, source):
    model = Segmentor(config(foreign))
    model.load_state_dict({'decode_head.w': torch.ones(1)}, strict=False)
    assert_equal_outputs(model.eval()(IMAGES), source(IMAGES))


def test_incomplete_and_absent_checkpoints_are_errors(tmp_path):
    trunk = randomise(CPVT(arch=COLUMN, position=dict(type='PEG')))
    state = {key: value for key, value in trunk.state_dict().items() if not key.startswith('norm.')}
    torch.save(state, tmp_path / 'part.pth')
    init_cfg = dict(type='Pretrained', checkpoint=str(tmp_path / 'part.pth'))
    cfg = dict(type='MultiScaleCPVT', arch=COLUMN, position=dict(type='PEG'), with_cls_token=True, init_cfg=init_cfg)
    for run in (lambda model: model.init_weights(), lambda model: model(IMAGES)):
        with pytest.raises(CheckpointError, match=r'lacks 2 keys of the model: norm.weight, norm.bias'):
            run(MODELS.build(cfg))
    model = MODELS.build(cfg | dict(init_cfg=init_cfg | dict(allow_missing=['norm.*'])))
    assert isinstance(model, MultiScaleCPVT)
    model.init_weights()
    assert torch.equal(model.blocks[0].attn.qkv.weight, trunk.blocks[0].attn.qkv.weight)
    with pytest.raises(FileNotFoundError, match=r"checkpoint: there is no file or folder 'gone.pth'"):
        MODELS.build(cfg | dict(init_cfg=dict(type='Pretrained', checkpoint='gone.pth'))).init_weights()


def test_the_log_tells(foreign, caplog, monkeypatch):
    from cpvt_backbones.checkpoints import pretrained

    told = []
    monkeypatch.setattr(pretrained, 'print_log', lambda message, logger: told.append((message, logger)))
    MODELS.build(config(foreign)).init_weights()
    ((message, logger),) = told
    assert logger == 'current'
    assert message.startswith(f"load {foreign}: Twins-PCPVT, mmseg's names (under 'backbone.') to PyramidCPVT: ")
    assert "dropped 1: decode_head.w (not under 'backbone.')" in message
