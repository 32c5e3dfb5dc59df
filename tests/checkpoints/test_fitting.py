"""Fitting a checkpoint to a model: added PEGs, resized tables, dropped keys, wrappers."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from mmengine.runner.checkpoint import get_state_dict, save_checkpoint, weights_to_cpu
from peers import LEARNED, learned, misfit
from safetensors.torch import save_file
from tiny import COLUMN, PYRAMID, assert_equal_outputs, max_difference, randomise

from cpvt_backbones import MultiScaleCPVT, PyramidCPVT, convert_state_dict
from cpvt_backbones.checkpoints import (
    CheckpointError,
    Reason,
    export_state_dict,
    load_checkpoint,
)

FIVE = dict(type='PEG', after_blocks=(0, 1, 2, 3))


def column(**kwargs):
    return learned(**{'out_type': 'featmap', **kwargs})


def load(model, state, **kwargs):
    state_dict, report = convert_state_dict(state, model, **kwargs)
    keys = model.load_state_dict(state_dict, strict=False)
    assert not keys.unexpected_keys and set(keys.missing_keys) == set(report.missing)
    return report


# -- DeiT into CPVT
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    'options',
    [
        dict(),
        dict(kind='separable', num_layers=2),
        dict(norm='BN', act='ReLU', bias=False),
        dict(kernel_size=5, target='qk', after_blocks=(-1, 0)),
    ],
    ids=str,
)
def test_any_peg_starts_as_the_identity_and_learns(options):
    source = randomise(column(position=None)).eval()
    model = column(position=dict(type='PEG', **options))
    report = load(model, source.state_dict())
    assert {*report.added} == {key for key in model.state_dict() if key.startswith('pos_block')}
    images = torch.randn(2, 3, 64, 48)
    assert max_difference(model.eval()(images)[0], source(images)[0]) <= 1e-4
    model.train()(images)[0].square().sum().backward()
    assert all(p.grad is not None for p in model.parameters())
    peg = model.pos_block.get_submodule('0')
    assert list(peg.parameters())[-1].grad.abs().max() > 0
    optimizer = torch.optim.SGD(model.pos_block.parameters(), lr=1.0)
    for _ in range(2):  # with the last layer off zero, gradients reach the first
        optimizer.step()
        optimizer.zero_grad()
        model(images)[0].square().sum().backward()
    assert all(p.grad.abs().max() > 0 for p in peg.proj[0].parameters() if p.dim() > 1)


def test_fewer_pegs_need_allow_missing():
    state = column(position=dict(type='PEG')).state_dict()
    report = load(column(position=FIVE), state, allow_missing=['pos_block.*'])
    assert set(report.missing.values()) == {
        'allowed by allow_missing: it keeps its initial weights'
    }
    report = load(column(), state, allow_missing='pos_embed.0')
    assert report.dropped == dict.fromkeys(
        ['pos_block.0.proj.0.weight', 'pos_block.0.proj.0.bias'], 'the model has no such PEG'
    )


def test_pegs_that_no_output_needs_are_dropped():
    """They belong to the architecture and are not built."""
    source = column(position=FIVE, out_type='featmap').state_dict()
    for options in (dict(out_indices=1), dict(out_type='cls_token')):
        model = column(position=FIVE, **options)
        assert 'pos_block.3.proj.0.weight' not in model.state_dict()
        assert (
            load(model, source).dropped['pos_block.3.proj.0.weight'] == 'the model has no such PEG'
        )


# -- tables
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(('theirs', 'ours'), [(True, True), (False, False), (True, False)])
@pytest.mark.parametrize(
    ('old', 'new'),
    [
        *((64, 96), (64, (64, 128))),
        # As many entries in another grid.
        *(((32, 128), 64), (64, (128, 32)), ((144, 256), 192)),
        # 16 + 1 entries are 4 x 4 and a class token, also where the model has 3 x 5 cells.
        *((64, (80, 48)), (80, (64, 96)), (80, (96, 64))),
    ],
)
def test_a_table_of_another_grid_is_resized(old, new, theirs, ours):
    """As ``load_state_dict`` resizes it, with and without a class token."""
    source = randomise(column(img_size=old, with_cls_token=theirs)).eval()
    model, twin = (randomise(column(img_size=new, with_cls_token=ours)).eval() for _ in range(2))
    grids = source.pos_embed.grids[0], model.pos_embed.grids[0]
    note = 'pos_embed.0: resized from {} x {} to {} x {} tokens'.format(*grids[0], *grids[1])
    assert note in load(model, source.state_dict()).notes
    table, resized = (part.pos_embed.get_parameter('0') for part in (source, model))
    wanted = model.pos_embed.resize(table[:, int(theirs) :], *grids)
    assert torch.equal(resized[:, int(ours) :], wanted)
    twin.load_state_dict(source.state_dict(), strict=theirs == ours)
    images = torch.randn(1, 3, 80, 96)
    assert_equal_outputs(model(images), twin(images))
    again = column(img_size=new, with_cls_token=ours)
    assert not load(again, model.state_dict()).notes


@pytest.mark.parametrize('save', ['pth', 'safetensors', 'mmengine'])
def test_files_keep_the_grid_of_a_table(save, tmp_path):
    source, model = randomise(column(img_size=(32, 128))), column()
    path = tmp_path / ('weights.safetensors' if save == 'safetensors' else 'weights.pth')
    if save == 'safetensors':
        save_file(source.state_dict(), path)
    elif save == 'mmengine':
        save_checkpoint(dict(state_dict=weights_to_cpu(get_state_dict(source))), str(path))
    else:
        torch.save(source.state_dict(), path)
    report = load_checkpoint(model, path)
    assert 'pos_embed.0: resized from 2 x 8 to 4 x 4 tokens' in report.notes


@pytest.mark.parametrize(('old', 'new'), [(16, 8), (16, 14), (8, 16)])
def test_a_patch_gives_what_the_source_gives_for_it_resized(old, new):
    source, model = column(patch_size=old), column(patch_size=new)
    report = load(model, source.state_dict())
    assert (
        f'patch_embed.proj.weight: fitted to patches of {new} x {new} px, from {old} x {old} px'
        in report.notes
    )
    patch = torch.randn(5, 3, new, new)
    resized = F.interpolate(patch, (old, old), mode='bilinear', antialias=True)
    weights = (m.patch_embed.proj for m in (model, source))
    found, expected = (
        torch.einsum('bcij,ocij->bo', x, m.weight)
        for x, m in zip((patch, resized), weights, strict=True)
    )
    # Sums of 3 * 16 * 16 terms, each with a few roundings.
    assert max_difference(found, expected) <= 1e-4 * expected.abs().max()


@pytest.mark.parametrize('channels', [1, 2, 4, 6, 13])
@pytest.mark.parametrize('kind', ['column', 'smaller_patches', 'pyramid'])
def test_weights_of_rgb_are_fitted_to_other_channels(kind, channels):
    """As timm fits them; grey images in all channels give what they gave."""
    adapt = pytest.importorskip('timm.models._manipulate').adapt_input_conv
    build = column if kind != 'pyramid' else lambda **kw: PyramidCPVT(arch=PYRAMID, **kw)
    options = dict(patch_size=8) if kind == 'smaller_patches' else {}
    source, model = randomise(build()).eval(), build(in_channels=channels, **options).eval()
    reference = build(**options).eval()
    report, _ = load(model, source.state_dict()), load(reference, source.state_dict())
    key = 'patch_embeds.0.proj.weight' if kind == 'pyramid' else 'patch_embed.proj.weight'
    wanted = adapt(channels, reference.state_dict()[key])
    assert max_difference(model.state_dict()[key], wanted) <= 1e-6 * wanted.abs().max()
    assert any(
        note.startswith(f'{key}: fitted to {channels} channels, from 3: ') for note in report.notes
    )
    grey = torch.randn(1, 1, 64, 64)
    if channels % 3 == 0 or channels == 1:
        got, want = (
            m(grey.expand(-1, count, -1, -1))[-1]
            for m, count in ((model, channels), (reference, 3))
        )
        assert max_difference(got, want) <= 1e-4 * want.abs().max()
    misfit('shape mismatch: patch_embed', model.state_dict(), build(in_channels=5, **options))


def without_grids(state):
    """The state dict as other packages and earlier versions have it."""
    return {key: value for key, value in state.items() if 'grid_' not in key}


def test_the_grid_of_a_table_is_assumed_aloud():
    """3 x 5 and a class token, or 4 x 4; 2 x 8 or 4 x 4: the number alone does not tell."""
    square, wide, odd = (column(img_size=size) for size in (64, (32, 128), (32, 80)))
    bare = without_grids(square.state_dict())
    notes = load(column(img_size=96), bare).notes
    assert (
        notes[0] == 'pos_embed.0: the checkpoint does not say its grid; 4 x 4 is assumed, a square'
    )
    assert not load(column(), bare).notes
    (note,) = load(column(img_size=(32, 80)), without_grids(odd.state_dict())).notes
    assert (
        note
        == "pos_embed.0: the checkpoint does not say its grid; 2 x 5 is assumed, the model's grid"
    )
    for state in (bare, without_grids(wide.state_dict())):
        misfit(r'may be 4 x 4 or 2 x 8, and the .* table_grid=\(height', state, wide)
        assert not load(column(img_size=(32, 128)), state, table_grid=(2, 8)).notes
    load(column(img_size=(32, 128)), bare, table_grid=[4, 4])
    timm_like = {key.replace('pos_embed.0', 'pos_embed'): value for key, value in bare.items()}
    timm_like['pos_embed'] = timm_like['pos_embed'][:, 1:]  # without an entry for the class token
    misfit('may be 3 x 5 after 1 or 4 x 4 after 0', timm_like, column(img_size=(48, 80)))


@pytest.mark.parametrize('size', [(32, 128), (64, 32), (32, 80)])
def test_a_state_dict_without_grids_loads_directly(size):
    source, model = column(img_size=size), column(img_size=size)
    grid = '{} x {}'.format(*source.pos_embed.grids[0])
    with pytest.warns(
        UserWarning, match=f'pos_embed.0: the weights do not contain its grid; {grid}'
    ):
        model.load_state_dict(without_grids(source.state_dict()))
    assert torch.equal(model.pos_embed.get_parameter('0'), source.pos_embed.get_parameter('0'))
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        model.load_state_dict(source.state_dict())
        column().load_state_dict(without_grids(column().state_dict()))


@pytest.mark.parametrize('grid', [(5, 5), (0, 16), (16,), (4.0, 4.0), (-4, -4)])
def test_a_wrong_grid_is_refused(grid):
    state = column().state_dict() | {'pos_embed.grid_0': torch.tensor(grid)}
    misfit('grid', state, column())
    with pytest.raises(RuntimeError, match='grid'):
        column().load_state_dict(state)
    for wrong in (dict(table_grid=(4, 5)), dict(table_grid=(4,)), dict(table_grid=(0, 4))):
        with pytest.raises(ValueError, match='table_grid'):
            convert_state_dict(column().state_dict(), column(), **wrong)


def test_grids_of_a_pyramid():
    options = dict(arch=PYRAMID, position=LEARNED, with_cls_token=True)
    source = PyramidCPVT(**options, img_size=(64, 256))
    model = PyramidCPVT(**options, img_size=128)
    notes = load(model, source.state_dict()).notes
    assert notes[0] == 'pos_embed.0: resized from 16 x 64 to 32 x 32 tokens' and len(notes) == 4
    bare = without_grids(source.state_dict())
    misfit('may be 32 x 32 or 16 x 64', bare, source)
    grids = [(16, 64), (8, 32), (4, 16), (2, 8)]
    assert load(PyramidCPVT(**options, img_size=128), bare, table_grid=grids).notes[:4] == notes


def test_other_packages_get_no_grid():
    model = column(img_size=(32, 80))
    state, report = export_state_dict(model.state_dict(), model, to='timm')
    assert (
        'pos_embed.grid_0' not in state
        and '2 x 5 tokens' in report.notes[0]
        and 'pos_embed.grid_0' in report.dropped
    )


@pytest.mark.parametrize('grid', [4, 6])
@pytest.mark.parametrize('directly', [True, False])
@pytest.mark.parametrize('registers', [4, 0])
def test_entries_of_a_table_follow_their_tokens(registers, directly, grid):
    """Of class, distillation and register tokens to a model without the first two, as the peer that
    never had them.
    """
    source = learned(num_registers=4, with_dist_token=True)
    ours = learned(num_registers=registers, with_cls_token=False)
    state = source.state_dict()
    state['pos_embed.0'] = torch.randn(1, 6 + grid * grid, 24)
    state['pos_embed.grid_0'] = torch.tensor((grid, grid))
    wanted = {key: value for key, value in state.items() if key in ours.state_dict()}
    wanted['pos_embed.0'] = state['pos_embed.0'][:, 6 - registers :]
    peer = learned(num_registers=registers, with_cls_token=False)
    peer.load_state_dict(wanted)
    if directly:
        ours.load_state_dict(state, strict=False)
    else:
        assert any('of tokens that the model lacks' in note for note in load(ours, state).notes)
    assert all(value.equal(peer.state_dict()[name]) for name, value in ours.state_dict().items())


# -- parts of models
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize('source', ['last', 'taps'])
@pytest.mark.parametrize('cls', [True, False])
def test_a_column_into_the_multi_scale_model(source, cls):
    trunk = randomise(column(position=FIVE)).eval()
    model = MultiScaleCPVT(arch=COLUMN, source=source, position=FIVE, with_cls_token=cls).eval()
    report = load(model, trunk.state_dict())
    assert report.missing and all(key.startswith('pyramid.') for key in report.missing)
    assert set(report.dropped) == (set() if cls else {'cls_token'})
    if cls and source == 'last':  # stride 16 is the trunk's map as it is
        images = torch.randn(1, 3, 64, 48)
        assert torch.equal(model(images)[2], trunk(images)[0])
    back = column(position=FIVE, with_cls_token=cls)
    assert all(key.startswith('pyramid.') for key in load(back, model.state_dict()).dropped)
    state = {
        key: value for key, value in trunk.state_dict().items() if 'blocks.2.mlp.fc1' not in key
    }
    misfit(r'lacks 2 keys of the model: blocks.2.mlp.fc1.weight', state, model)


def test_blocks_and_stages_that_no_output_needs_are_dropped():
    report = load(column(out_indices=1), column().state_dict())
    assert (
        report.dropped['blocks.3.mlp.fc2.bias']
        == 'of a block or stage that no output needs (out_indices)'
    )
    assert report.dropped['norm.weight'] == 'the model does not normalise its last block'
    assert len(report.dropped) == 2 * 12 + 2
    report = load(
        PyramidCPVT(arch=PYRAMID, out_indices=(0, 2)), PyramidCPVT(arch=PYRAMID).state_dict()
    )
    assert {key.split('.')[0] + key.split('.')[1] for key in report.dropped} == {
        'patch_embeds3',
        'blocks3',
        'pos_block3',
    }
    # and a model that never had them is a fine source
    assert not load(column(out_indices=1), column(out_indices=1).state_dict()).dropped


def prefixed(prefix, state):
    return {f'{prefix}.{key}': value for key, value in state.items()}


NECK = {'neck.w': torch.ones(1)}
OPTIMIZER = dict(optimizer=dict(state={0: dict(step=torch.ones(()))}))
WRAPPERS = {
    'bare': lambda state: state,
    'model': lambda state: dict(model=state, epoch=3),
    'optimizer': lambda state: dict(state_dict=dict(state), **OPTIMIZER),
    'nested': lambda state: dict(state_dict=dict(model=state), best=torch.ones(())),
    'DDP': lambda state: prefixed('module', state),
    'compiled': lambda state: prefixed('_orig_mod.module.backbone', state),
    'compiled block': lambda state: {
        key.replace('blocks.1.', 'blocks.1._orig_mod.'): value for key, value in state.items()
    },
    'detector': lambda state: dict(state_dict=prefixed('backbone', state) | NECK),
    'Lightning': lambda state: prefixed('net', state),
    'ViTDet': lambda state: dict(model=prefixed('backbone.net', state)),
    'smp': lambda state: prefixed('encoder.model', state),
    'teacher': lambda state: dict(teacher=prefixed('backbone', state), epoch=3),
    'DINOv2': lambda state: dict(teacher=prefixed('backbone', state) | NECK, **OPTIMIZER),
}


@pytest.mark.parametrize('wrapper', WRAPPERS)
def test_wrappers_and_prefixes_are_removed(wrapper):
    source, model = randomise(column()), column()
    report = load(model, WRAPPERS[wrapper](source.state_dict()))
    assert not report.missing and set(report.dropped) <= {'neck.w', 'teacher.neck.w'}
    found = model.state_dict()
    assert all(torch.equal(value, found[key]) for key, value in source.state_dict().items())


@pytest.mark.parametrize(
    ('first', 'second', 'nested'),
    [
        ('module.base_encoder', 'module.momentum_encoder', False),  # MoCo v3
        ('teacher', 'student', False),
        ('teacher', 'student', True),  # DINO and iBOT
        ('teacher.backbone', 'student.module.backbone', True),
    ],
)
def test_several_backbones_are_named(first, second, nested):
    weights = {first: randomise(column()).state_dict(), second: column().state_dict()}
    both = {f'{name}.{key}': value for name, part in weights.items() for key, value in part.items()}
    checkpoint = dict(state_dict=both)
    if nested:
        checkpoint = dict(epoch=3, teacher={}, student={}, loss=dict(center=torch.ones(2)))
        for key, value in both.items():
            container, _, rest = key.partition('.')
            checkpoint[container][rest] = value
    with pytest.raises(CheckpointError) as error:
        convert_state_dict(checkpoint, column())
    choices = str(error.value).partition('several parts of the checkpoint are backbones')[2]
    assert choices == f"; choose one by prefix=: '{first}', '{second}'"
    for name, part in weights.items():
        state_dict, report = convert_state_dict(checkpoint, column(), prefix=name)
        assert all(torch.equal(state_dict[key], value) for key, value in part.items())
        left = {key for key, why in report.dropped.items() if why == Reason.NOT_UNDER_PREFIX}
        assert not any(key.startswith(name) for key in left) and len(left) >= len(part)
    misfit(r"prefix='neck.': no key starts with it", checkpoint, column(), prefix='neck')


def test_averaged_weights_need_ema():
    state, averaged = (randomise(column()).state_dict() for _ in range(2))
    for name in ('model_ema', 'state_dict_ema'):
        checkpoint = {'model': state, name: averaged}
        for ema, wanted in ((False, state), (True, averaged)):
            state_dict, _ = convert_state_dict(checkpoint, column(), ema=ema)
            assert all(torch.equal(state_dict[key], value) for key, value in wanted.items())
        state_dict, _ = convert_state_dict({name: averaged}, column())  # there are no others
        assert all(torch.equal(state_dict[key], value) for key, value in averaged.items())
    misfit(
        r'ema=True: the checkpoint has none of model_ema, .*; it has model',
        dict(model=state),
        column(),
        ema=True,
    )


def test_text_of_the_report():
    state = {f'backbone.{key}': value for key, value in column().state_dict().items()}
    state['backbone.pos_block.pos.weight'] = torch.ones(24, 1, 3, 3)
    state['backbone.pos_block.pos.bias'] = torch.ones(24)
    state['head.w'] = torch.ones(1)
    _, report = convert_state_dict(state, column(position=dict(type='PEG')))
    assert report.dropped['head.w'] == 'not under the prefix'
    first, *lines = str(report).split('\n')
    assert first.endswith("(under 'backbone.') to CPVT: 55 keys loaded")
    peg = 'backbone.pos_block.pos.{0} -> pos_block.0.proj.0.{0}'
    assert lines == [
        f'  renamed 2: {peg.format("weight")}, {peg.format("bias")}',
        '  dropped 2: backbone.pos_embed.0, backbone.pos_embed.grid_0 (the model has no learned'
        ' position embedding)',
    ]
