"""What training needs: gradients everywhere, checkpointing, stochastic depth, freezing, one DDP
step, same seeds.
"""

import copy
import pickle

import pytest
import torch
from tiny import (
    BACKBONES,
    DENSE,
    NEED_EVERY_KEY,
    POSITIONS,
    assert_equal_outputs,
    column,
    multi_scale,
    pyramid,
    randomise,
)
from torch import nn

from cpvt_backbones.layers import DropPath

IMAGES = (2, 3, 45, 70)


def loss_of(outputs):
    generator = torch.Generator().manual_seed(1)
    return sum((out * torch.randn(out.shape, generator=generator)).sum() for out in outputs)


OUT_INDICES = (0, (1,), (0, 2), (3, 0), -1, (-2, -1), (2, 2))
TAPS = ((0, 1, 2, 3), (1, 1, 2, 2), (0, 0, 0, 0), (-4, -3, -2, -1))
LAST = {name: {**POSITIONS[name], 'after_blocks': (3,)} for name in ('peg', 'peg_bn')}
TOKEN = dict(out_type='cls_token', out_indices=-1, with_cls_token=True)


def choices_of_outputs():
    """Name, builder and arguments of models with every choice of outputs and encodings."""
    for name, build in DENSE.items():
        yield name, build, {}
        if name != 'pyramid_cls':
            for indices in OUT_INDICES:
                yield f'{name} {indices}', build, dict(out_indices=indices)
    for taps in TAPS:
        yield f'taps {taps}', multi_scale, dict(source='taps', taps=taps)
    for out_type in ('featmap', 'avg_featmap', 'raw', 'cls_token'):
        options = TOKEN if out_type == 'cls_token' else dict(out_type=out_type)
        for name, position in POSITIONS.items():
            yield f'column {name} {out_type}', column, dict(position=position, **options)
            if name not in NEED_EVERY_KEY:
                yield f'pyramid {name} {out_type}', pyramid, dict(position=position, **options)
        if out_type != 'cls_token':
            for name, position in LAST.items():
                yield f'column {name} last {out_type}', column, dict(position=position, **options)
    every_block = dict(type='PEG', after_blocks=(0, 1, 2, 3))
    yield 'column every block', column, dict(position=every_block, **TOKEN)


CHOICES = list(choices_of_outputs())


@pytest.mark.parametrize(('_', 'build', 'arguments'), CHOICES, ids=[case[0] for case in CHOICES])
def test_no_parameter_is_unused(_, build, arguments):
    model = build(**arguments)
    loss_of(model(torch.randn(IMAGES))).backward()
    trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    assert [name for name, p in trained if p.grad is None] == []
    if not arguments:
        assert [name for name, p in trained if not p.grad.any()] == []


# -- checkpointing
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize('name', BACKBONES)
def test_checkpointing_gives_equal_outputs_gradients_and_buffers(name):
    rates = dict(drop_path_rate=0.5, drop_rate=0.1)
    plain = randomise(BACKBONES[name](**rates)).train()
    saving = BACKBONES[name](**rates, with_cp=True).train()
    saving.load_state_dict(plain.state_dict())
    images, results = torch.randn(IMAGES), []
    for model in (plain, saving):
        torch.manual_seed(3)
        results.append(model(images))
        loss_of(results[-1]).backward()
    assert_equal_outputs(*results)
    for (key, p), q in zip(plain.named_parameters(), saving.parameters(), strict=True):
        assert torch.allclose(p.grad, q.grad, rtol=1e-5, atol=1e-6), key
    for (key, p), q in zip(plain.named_buffers(), saving.buffers(), strict=True):
        assert torch.equal(p, q), f'{key}: recomputing updated the running statistics twice'


def test_checkpointing_really_recomputes():
    calls = []
    for with_cp, wanted in ((False, 4), (True, 8)):
        model = column(with_cp=with_cp)
        for block in model.blocks:
            block.norm1.register_forward_hook(lambda *_: calls.append(1))
        calls.clear()
        loss_of(model(torch.randn(IMAGES))).backward()
        assert len(calls) == wanted
        calls.clear()
        with torch.no_grad():
            model(torch.randn(IMAGES))
        assert len(calls) == 4


# -- stochastic depth
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize('name', DENSE)
def test_stochastic_depth_is_applied_once_a_branch(name):
    model = DENSE[name](drop_path_rate=0.3).train()
    calls = []
    for module in model.modules():
        if isinstance(module, DropPath):
            module.register_forward_hook(lambda module, *_: calls.append(module))
    model(torch.randn(IMAGES))
    blocks = [m for m in model.modules() if type(m).__name__ == 'Block']
    assert len(calls) == len(set(calls)) == 2 * len(blocks)
    rates = [block.drop_path1.rate for block in blocks]
    assert rates == [block.drop_path2.rate for block in blocks]
    assert rates == pytest.approx([0.3 * i / (len(blocks) - 1) for i in range(len(blocks))])


@pytest.mark.parametrize('build', [column, pyramid])
def test_drop_path_of_a_cut_model_is_that_of_the_whole(build):
    models = build(drop_path_rate=0.4), build(drop_path_rate=0.4, out_indices=(1,))
    whole, cut = ([m.rate for m in model.modules() if isinstance(m, DropPath)] for model in models)
    assert 0 < len(cut) < len(whole)
    assert cut == whole[: len(cut)]


@pytest.mark.parametrize('name', DENSE)
def test_evaluation_is_deterministic(name):
    model = DENSE[name](drop_path_rate=0.5, drop_rate=0.2, attn_drop_rate=0.2)
    images = torch.randn(IMAGES)
    model.eval()
    assert_equal_outputs(model(images), model(images))
    model.train()
    assert any(not torch.equal(a, b) for a, b in zip(model(images), model(images), strict=True))


# -- freezing
# --------------------------------------------------------------------------------------------------


def expected_frozen(model, stage, name):
    """Whether ``frozen_stages=stage`` freezes a parameter, by the docstrings."""
    part, *rest = name.split('.')
    if stage < 0:
        return False
    if type(model).__name__ == 'PyramidCPVT':
        if part == 'norm':
            return stage == 4
        if part == 'cls_token':
            return stage == 4
        owner = int(rest[0])
        return owner < stage or (part in ('patch_embeds', 'pos_embed') and owner == 0)
    if part in ('patch_embed', 'cls_token', 'pos_embed'):
        return True
    if part in ('blocks', 'pos_block'):  # in these models PEG i stands behind block i
        return int(rest[0]) < stage
    return part == 'norm' and stage == 4


FREEZABLE = {
    'column': lambda **kw: column(
        position=[dict(type='Learned'), dict(type='PEG', after_blocks=(0, 1, 2, 3))], **kw
    ),
    'column_bn': lambda **kw: column(
        position=dict(type='PEG', after_blocks=(0, 1, 2, 3), norm='BN', act='ReLU'),
        drop_path_rate=0.3,
        **kw,
    ),
    'multi_scale': lambda **kw: multi_scale(**kw),
    'pyramid': lambda **kw: pyramid(**kw),
    'pyramid_both': lambda **kw: pyramid(
        position=[dict(type='Learned'), dict(type='PEG')],
        with_cls_token=True,
        final_norm=True,
        **kw,
    ),
}


@pytest.mark.parametrize('stage', [-1, 0, 1, 2, 3, 4])
@pytest.mark.parametrize('name', FREEZABLE)
def test_frozen_stages(name, stage):
    model = FREEZABLE[name](frozen_stages=stage)
    frozen = {n for n, _ in model.named_parameters() if expected_frozen(model, stage, n)}
    assert bool(frozen) is (stage >= 0)
    for _ in range(2):
        model.train()
        assert {n for n, p in model.named_parameters() if not p.requires_grad} == frozen
        for n, module in model.named_modules():
            own = [f'{n}.{leaf}' for leaf, _ in module.named_parameters(recurse=False)]
            if own and n != 'pos_embed':  # tables behave alike in both modes
                assert module.training is not (own[0] in frozen), n
        for n, module in model.named_modules():
            if isinstance(module, DropPath):
                assert module.training is not (n.rpartition('.')[0] + '.norm1.weight' in frozen), n
        buffers = {k: v.clone() for k, v in model.named_buffers()}
        outputs = model(torch.randn(IMAGES))
        if any(out.requires_grad for out in outputs):
            loss_of(outputs).backward()
        for n, p in model.named_parameters():
            assert (p.grad is None) is (n in frozen), n
        for n, b in model.named_buffers():
            if n.rpartition('.')[0] + '.weight' in frozen:
                assert torch.equal(b, buffers[n]), f'{n} of a frozen norm moved'
        model.eval()


def test_an_adapter_in_a_frozen_block_is_trained():
    """As peft adds one: the layer moves into the adapter's module, which takes its name."""

    class Adapter(nn.Module):
        def __init__(self, layer):
            super().__init__()
            self.base_layer, self.lora_A = layer, nn.Linear(24, 72)
            self.lora_dropout = nn.Dropout(0.5)

        def forward(self, x):
            return self.base_layer(x) + self.lora_dropout(self.lora_A(x))

    model = column(frozen_stages=4)
    attention = model.blocks[1].attn
    attention.qkv = Adapter(attention.qkv)
    model.train()
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    assert trained == [f'blocks.1.attn.qkv.lora_A.{leaf}' for leaf in ('weight', 'bias')]
    assert attention.qkv.lora_dropout.training and not model.blocks[1].norm1.training
    loss_of(model(torch.randn(IMAGES))).backward()
    assert attention.qkv.lora_A.weight.grad.any()


# -- reproducible, distributed
# -----------------------------------------------------------------------------------------


@pytest.mark.parametrize('name', BACKBONES)
def test_copies_by_deepcopy_and_pickle_are_of_their_own(name):
    model, images = randomise(BACKBONES[name]()).eval(), torch.randn(IMAGES)
    before = model(images)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert_equal_outputs(before, twin(images))
        with torch.no_grad():
            for parameter in twin.parameters():
                parameter.add_(1)
        assert_equal_outputs(before, model(images))


@pytest.fixture(scope='module')
def process_group(tmp_path_factory):
    store = tmp_path_factory.mktemp('ddp') / 'store'
    torch.distributed.init_process_group(
        'gloo', init_method=f'file://{store}', rank=0, world_size=1
    )
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize('with_cp', [False, True])
@pytest.mark.parametrize('name', DENSE)
def test_a_distributed_step_without_find_unused_parameters(process_group, name, with_cp):
    model = nn.parallel.DistributedDataParallel(DENSE[name](with_cp=with_cp, frozen_stages=1))
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
    for _ in range(2):  # the second complains of parameters unused in the first
        optimizer.zero_grad()
        loss_of(model(torch.randn(IMAGES))).backward()
        optimizer.step()
