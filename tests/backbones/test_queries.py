"""Queries among the tokens of the last blocks of a plain backbone."""

import pytest
import torch
from tiny import POSITIONS, column, randomise

from cpvt_backbones.backbones import Queries
from cpvt_backbones.errors import InputError, InputTypeError
from cpvt_backbones.layers.attention import set_fused_attention

COUNT, BLOCKS, DIM = 5, 2, 24
VARIANTS = {
    **{name: dict(position=position) for name, position in POSITIONS.items()},
    'registers': dict(num_registers=3, layer_scale_init=0.5),
    'no_class_token': dict(with_cls_token=False),
    'windows_before': dict(window_size=2, global_blocks=(2, 3)),
    'windows': dict(window_size=2),
    'clip': dict(pre_norm=True, activation='quick_gelu'),
}


def predict(queries, features):
    maps = torch.einsum('bqc,bchw->bqhw', queries, features)
    return maps.repeat_interleave(2, 2).repeat_interleave(2, 3), queries[..., :3]


def some(k, maps, grid):
    """A pattern of patches that differs by query, image and block."""
    small = torch.nn.functional.interpolate(maps.detach(), grid, mode='bilinear')
    return (small > 0.1 * k).flatten(2)


def queries_of(seed=0, **options):
    tokens = torch.randn(COUNT, DIM, generator=torch.Generator().manual_seed(seed))
    given = dict(tokens=tokens, num_blocks=BLOCKS, predict=predict, stride=8, limit=some)
    return Queries(**{**given, **options})


def model_of(name):
    torch.manual_seed(0)
    return randomise(column(**VARIANTS[name])).eval()


@pytest.mark.parametrize('name', VARIANTS)
def test_queries_are_prefix_tokens_of_the_last_blocks(name):
    """By hand: the tokens before block n, the queries in front of them, the last blocks."""
    model, images = model_of(name), torch.rand(2, 3, 50, 70)
    queries = queries_of(limit=None)
    with torch.no_grad():
        ((maps, vectors),) = model(images, queries=queries)
        x, grid = model._embed(images)
        prefix = model._num_prefix
        for index, block in enumerate(model.blocks):
            if index == len(model.blocks) - BLOCKS:
                x, prefix = torch.cat((queries.tokens.expand(2, -1, -1), x), 1), prefix + COUNT
            rotations = model._rotations(0, grid, prefix, x.device)
            x, grid = model._run_block(0, index, block, x, prefix, grid, rotations)
        x = model.norm(x)
        wanted = predict(x[:, :COUNT], x[:, prefix:].transpose(1, 2).unflatten(2, grid))
    torch.testing.assert_close(vectors, wanted[1])
    torch.testing.assert_close(maps, wanted[0][:, :, :7, :9])
    assert maps.shape == (2, COUNT, 7, 9)


@pytest.mark.parametrize('name', VARIANTS)
@pytest.mark.parametrize('limit', [None, some])
def test_padded_images_as_if_alone(name, limit):
    model = model_of(name)
    sizes = [(33, 64), (50, 21), (64, 70), (33, 64)]
    batch = torch.full((4, 3, 66, 72), 7.0)
    queries = queries_of(limit=limit, padding_value=-20.0)
    alone = []
    with torch.no_grad():
        for image, (height, width) in zip(batch, sizes, strict=True):
            image[:, :height, :width] = torch.rand(3, height, width)
            alone.append(model(image[None, :, :height, :width], queries=queries))
        whole = model(batch, valid_sizes=sizes, queries=queries)
    assert len(whole) == (1 if limit is None else BLOCKS + 1)
    for k, (maps, vectors) in enumerate(whole):
        assert maps.shape == (4, COUNT, 9, 9)
        for index, outputs in enumerate(alone):
            one, vector = outputs[k]
            rows, columns = one.shape[2:]
            torch.testing.assert_close(
                maps[index, :, :rows, :columns], one[0], atol=1e-5, rtol=1e-5
            )
            assert (maps[index, :, rows:] == -20).all()
            assert (maps[index, :, :, columns:] == -20).all()
            torch.testing.assert_close(vectors[index], vector[0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize('name', VARIANTS)
@pytest.mark.parametrize('fused', [True, False])
def test_a_query_sees_only_the_patches_of_its_limit(name, fused):
    """In one block: a change of a patch reaches the queries that may attend to it, and no other."""
    model, grid = model_of(name).double(), (4, 4)
    prefix = COUNT + model._num_prefix
    allowed = torch.rand(1, COUNT, 16, generator=torch.Generator().manual_seed(1)) > 0.5
    allowed[:, 0] = False  # a query may see no patch at all
    x = torch.randn(1, prefix + 16, DIM, dtype=torch.float64)
    rotations = model._rotations(0, grid, prefix, x.device)

    def run(tokens):
        with torch.no_grad():
            return model._run_block(
                0, 3, model.blocks[-1], tokens, prefix, grid, rotations, allowed
            )[0]

    set_fused_attention(fused)
    try:
        before = run(x)
        for patch in range(16):
            changed = x.clone()
            changed[:, prefix + patch, : DIM // 2] += 1
            change = (run(changed) - before)[0, :COUNT].abs().amax(1)
            assert torch.equal(change > 1e-9, allowed[0, :, patch])
    finally:
        set_fused_attention(True)


def test_without_limits_masks_change_nothing():
    model, images = model_of('learned'), torch.rand(2, 3, 40, 40)
    everything = lambda k, maps, grid: torch.ones(  # noqa: E731
        2, COUNT, grid[0] * grid[1], dtype=torch.bool
    )
    with torch.no_grad():
        ((maps, vectors),) = model(images, queries=queries_of(limit=None))
        found = model(images, queries=queries_of(limit=everything))
    assert len(found) == BLOCKS + 1
    torch.testing.assert_close(found[-1][0], maps, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found[-1][1], vectors, atol=1e-5, rtol=1e-5)


def test_gradients_with_checkpointing_are_the_same():
    gradients = []
    for with_cp in (False, True):
        torch.manual_seed(0)
        model = randomise(column(with_cp=with_cp, position=POSITIONS['learned_rope_and_peg']))
        tokens = queries_of().tokens.requires_grad_()
        images = torch.rand(2, 3, 40, 50, generator=torch.Generator().manual_seed(2))
        outputs = model(images, queries=queries_of(tokens=tokens))
        sum(maps.square().mean() + vectors.square().mean() for maps, vectors in outputs).backward()
        parameters = {name: value.grad for name, value in model.named_parameters()}
        gradients.append(dict(parameters, queries=tokens.grad))
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient, msg=name)


def test_frozen_blocks_pass_gradients_to_the_queries():
    model = column(frozen_stages=4).train()
    tokens = queries_of().tokens.requires_grad_()
    ((maps, vectors),) = model(
        torch.rand(1, 3, 32, 32), queries=queries_of(tokens=tokens, limit=None)
    )
    (maps.mean() + vectors.mean()).backward()
    assert tokens.grad.abs().sum() > 0
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_random_scale_of_coordinates_is_that_of_all_blocks():
    rope = dict(type='RoPE', mode='dinov3', rescale_coords=2.0)
    model = column(position=rope).train()
    first, last = model._rotations_with_queries((3, 4), COUNT, torch.device('cpu'))
    prefix = model._num_prefix
    for early, late in zip(first[0][1][0], last[0][1][0], strict=True):
        torch.testing.assert_close(late[:, prefix + COUNT :], early[:, prefix:])


@pytest.mark.parametrize(
    ('options', 'error', 'message'),
    [
        (dict(tokens=[1.0]), InputTypeError, 'queries.tokens must be a torch.Tensor'),
        (dict(tokens=torch.rand(5, 7)), InputError, r'queries.tokens must be \(Q, 24\)'),
        (dict(num_blocks=5), InputError, r'num_blocks must be an integer in \[1, 4\], got 5'),
        (dict(num_blocks=0), InputError, 'num_blocks must be'),
        (dict(stride=0), InputError, 'stride must be'),
    ],
)
def test_refusals(options, error, message):
    with pytest.raises(error, match=message):
        column()(torch.rand(1, 3, 32, 32), queries=queries_of(**options))


def test_a_trunk_without_its_last_block_is_refused():
    with pytest.raises(InputError, match='out_indices must have the last block, 3'):
        column(out_indices=1)(torch.rand(1, 3, 32, 32), queries=queries_of())
