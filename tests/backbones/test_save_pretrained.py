"""Folders of ``save_pretrained``."""

import inspect
import json

import pytest
import torch
from tiny import BACKBONES, assert_equal_outputs, column, multi_scale, pyramid, randomise

from cpvt_backbones import CPVT, PEG, PyramidCPVT, convert_state_dict
from cpvt_backbones.checkpoints import CheckpointError
from cpvt_backbones.layers import PositionEncoding
from cpvt_backbones.layers import position as position_module


@pytest.mark.parametrize('name', BACKBONES)
def test_a_folder_gives_the_model_back(name, tmp_path):
    model = randomise(BACKBONES[name]()).eval()
    model.save_pretrained(tmp_path / 'folder')
    loaded = type(model).from_pretrained(tmp_path / 'folder').eval()
    images = torch.randn(2, 3, 40, 56)
    with torch.no_grad():
        assert_equal_outputs(loaded(images), model(images))
    assert sorted(path.name for path in (tmp_path / 'folder').iterdir()) == [
        'config.json',
        'model.safetensors',
    ]


def test_a_new_encoding_is_loaded_and_the_report_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(position_module, 'POSITIONS', dict(position_module.POSITIONS))

    @position_module.register_position('Twice')
    class Twice(PositionEncoding):
        attribute = 'twice'

        def __init__(self, stages):
            super().__init__()
            self.peg = PEG(stages[0].dim)

        def before_stage(self, stage, tokens, prefix_tokens, grid):
            return (self.peg(tokens, grid) if stage == 0 else tokens), prefix_tokens, grid

    for build in (column, pyramid):
        model = randomise(build(position=dict(type='Twice')))
        weights, report = convert_state_dict(model.state_dict(), build(position=dict(type='Twice')))
        assert (report.notes, report.added) == ([], {})
        for key, value in model.state_dict().items():
            assert torch.equal(weights[key], value), key
    plain = column(position=None).state_dict()
    _, report = convert_state_dict(plain, column(position=dict(type='Twice')))
    assert 'the source has no parameters of position' in str(report)


OTHER_ARGUMENTS = dict(
    img_size=(48, 64),
    position=[dict(type='Learned', antialias=False), dict(type='PEG', kernel_size=5)],
    with_cls_token=True,
    in_channels=4,
    qkv_bias=False,
    drop_rate=0.1,
    attn_drop_rate=0.2,
    drop_path_rate=0.3,
    norm_eps=1e-3,
    frozen_stages=1,
    with_cp=True,
)
OTHER_TRUNK = dict(
    patch_size=8,
    num_registers=2,
    window_size=3,
    global_blocks=[1],
    mask_window_padding=False,
    layer_scale_init=0.5,
    activation='swiglu',
    pre_norm=True,
    final_norm=False,
)

OTHER_PYRAMID = dict(
    embed_norm_eps=1e-3,
    final_norm=False,
    mask_window_padding=False,
    norm_after_stage=True,
)


@pytest.mark.parametrize(
    ('build', 'arguments'),
    [
        (column, dict(**OTHER_TRUNK, out_indices=[2], with_dist_token=True, out_type='raw')),
        (multi_scale, dict(**OTHER_TRUNK, out_indices=[1, 2], source='taps', taps=[0, 1, 2, 2])),
        (pyramid, dict(**OTHER_PYRAMID, out_indices=[3], out_type='raw')),
    ],
)
def test_every_argument_of_the_constructor_comes_back(build, arguments, tmp_path):
    model = build(**OTHER_ARGUMENTS, **arguments)
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path)
    parameters = inspect.signature(type(model)).parameters
    assert set(arguments) | set(OTHER_ARGUMENTS) | {'arch', 'init_cfg'} == set(parameters)
    for name in set(parameters) - {'init_cfg'}:
        saved, default = getattr(loaded, name), parameters[name].default
        assert plain(saved) == plain(getattr(model, name))
        assert plain(saved) != plain(default) or name == 'with_cls_token'


def plain(value):
    return json.loads(json.dumps(value))


def test_arguments_may_be_overridden(tmp_path):
    column(
        drop_path_rate=0.1, init_cfg=dict(type='Pretrained', checkpoint='gone.pth')
    ).save_pretrained(tmp_path)
    model = CPVT.from_pretrained(tmp_path, out_type='avg_featmap')
    assert (model.drop_path_rate, model.out_type) == (0.1, 'avg_featmap')
    assert model(torch.randn(1, 3, 32, 32))[0].shape == (1, 24)


@pytest.mark.full
def test_the_options_of_the_load_choose_the_weights(tmp_path):
    """A file of a teacher and a student, averaged weights, and a table that is not a square."""
    table = dict(type='Learned')
    wide = dict(arch='tiny', position=table, with_cls_token=False)
    raw, averaged = (randomise(CPVT(**wide, img_size=(32, 128))) for _ in range(2))
    images = torch.randn(1, 3, 32, 128)
    bare = {key: value for key, value in raw.state_dict().items() if 'grid' not in key}
    torch.save(dict(teacher=averaged.state_dict(), student=bare), tmp_path / 'two.pth')
    torch.save(dict(model_ema=averaged.state_dict()), tmp_path / 'averaged.pth')
    torch.save(dict(model=bare, model_ema=averaged.state_dict()), tmp_path / 'ema.pth')
    for file, options, source in (
        ('two', dict(prefix='teacher'), averaged),
        ('two', dict(prefix='student', table_grid=(2, 8)), raw),
        ('ema', dict(table_grid=(2, 8)), raw),
        ('ema', dict(ema=True), averaged),
        ('averaged', dict(ema=True), averaged),
    ):
        model = CPVT.from_pretrained(tmp_path / f'{file}.pth', img_size=(32, 128), **options)
        assert_equal_outputs(model.eval()(images), source.eval()(images))
        for parameter in model.parameters():
            parameter.data.zero_()
        model.init_weights()  # as mmengine does before a training
        assert_equal_outputs(model(images), source(images))


def test_a_fused_model_is_not_saved(tmp_path):
    with pytest.raises(ValueError, match=r'must have the weights of a CPVT\(.*unfused'):
        column().fuse().save_pretrained(tmp_path)
    assert not list(tmp_path.iterdir())


def test_weights_of_another_class_and_unknown_arguments(tmp_path):
    multi_scale().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match='weights of MultiScaleCPVT, not of CPVT; init_cfg'):
        CPVT.from_pretrained(tmp_path)
    with pytest.raises(ValueError, match='not of PyramidCPVT; MultiScaleCPVT.from_pretrained'):
        PyramidCPVT.from_pretrained(tmp_path)
    (tmp_path / 'config.json').write_text(json.dumps(dict(type='CPVT', shape='round')))
    with pytest.raises(TypeError, match="CPVT has no argument 'shape'"):
        CPVT.from_pretrained(tmp_path)


def test_damaged_files(tmp_path):
    column().save_pretrained(tmp_path)
    weights = tmp_path / 'model.safetensors'
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match='truncated or not a safetensors file'):
        CPVT.from_pretrained(tmp_path)
    for content, message in {
        '{': 'it is not JSON',
        '{"a":' * 10**6: 'it is nested too deeply',
        '[1]': 'it must hold a JSON object, got a list',
        ' ' * (65 << 20): 'it has more than 64 MiB',
    }.items():
        (tmp_path / 'config.json').write_text(content)
        with pytest.raises(ValueError, match=f"config.json' is damaged: {message}"):
            CPVT.from_pretrained(tmp_path)
