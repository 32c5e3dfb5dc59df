"""Sizes announced for a padded batch reach the backbone, or the forward call is an error."""

import copy
import gc
import pickle
import threading

import pytest
import torch
import torch.nn.functional as F
from tiny import column, multi_scale, randomise
from torch.distributed.utils import _cast_forward_inputs
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader

from cpvt_backbones.backbones import announce_sizes, announced_sizes

SIZES = [(48, 80), (64, 80)]

# What may happen to a batch between data preprocessor and backbone. These keep the pixels.
ARRIVES = {
    'same': lambda x: x,
    'slice of everything': lambda x: x[:],
    'times one': lambda x: x * 1.0,
    'in place': lambda x: x.mul_(0.5),
    'clone': torch.clone,
    'detach': torch.detach,
    'bfloat16': lambda x: x.to(torch.bfloat16),
    'float16': lambda x: x.half(),
    'float64': lambda x: x.double(),
    'bfloat16 and back': lambda x: x.bfloat16().float(),
    'float16 and back': lambda x: x.half().float(),
    'FSDP': lambda x: _cast_forward_inputs(torch.bfloat16, x)[0][0],
    'channels_last': lambda x: x.to(memory_format=torch.channels_last),
    'cat': lambda x: torch.cat([x]),
    'view_as': lambda x: x.view_as(x),
    'as_subclass': lambda x: x.as_subclass(torch.nn.Buffer),
    'Parameter': torch.nn.Parameter,
    'copy': copy.copy,
    'deepcopy': copy.deepcopy,
    'pickle': lambda x: pickle.loads(pickle.dumps(x)),
    'loader': lambda x: next(iter(DataLoader([x], batch_size=None))),
}
# These change them, so that the sizes no longer fit.
REFUSED = {
    'first images': lambda x: x[:1],
    'one image': lambda x: x[1:],
    'window': lambda x: x[..., :32, :32],
    'window of all images': lambda x: x[..., 8:, 8:],
    'channels': lambda x: x[:, :1].expand(-1, 3, -1, -1),
    'other order': lambda x: x[[1, 0]],
    'flip': lambda x: x.flip(3),
    'roll': lambda x: x.roll(1, 0),
    'repeat': lambda x: x.repeat(2, 1, 1, 1),
    'interpolate': lambda x: F.interpolate(x, size=(32, 40)),
    'pad': lambda x: F.pad(x, (0, 4, 0, 4)),
    'times two': lambda x: x * 2,
    'noise': lambda x: x + 0.1 * torch.rand_like(x),
}


def padded_batch():
    """A batch of which the first image is padded."""
    batch = torch.rand(2, 3, 64, 80)
    batch[0, :, 48:] = 0
    return batch


def batches_in_memory():
    """Addresses of the batches of this size that something in the process holds."""
    tensors = [one for one in gc.get_objects() if isinstance(one, torch.Tensor)]
    return {one.data_ptr() for one in tensors if one.shape == (2, 3, 64, 80)}


def features(model, images, sizes=None):
    with torch.no_grad():
        return model.to(images.dtype)(images, sizes)[0]


@pytest.mark.parametrize('replaced', [False, True], ids=['kept', 'replaced'])
@pytest.mark.parametrize('name', ARRIVES)
def test_a_copy_of_the_batch_has_its_sizes(name, replaced):
    """``x = x.half()`` replaces the batch, so that nothing but the copy is left of it."""
    model, batch = column().eval(), padded_batch()
    announce_sizes(batch, SIZES)
    images = ARRIVES[name](batch)
    if replaced:
        del batch
    found = features(model, images)
    assert torch.equal(found, features(model, images, SIZES))
    assert not torch.equal(found, features(model, images, [(64, 80)] * 2))


@pytest.mark.parametrize('name', REFUSED)
def test_other_pixels_are_refused(name):
    model, batch = column().eval(), padded_batch()
    announce_sizes(batch, SIZES)
    images = REFUSED[name](batch)
    shape = str(tuple(images.shape)).replace('(', r'\(').replace(')', r'\)')
    wanted = rf'\(48, 80\), \(64, 80\)\] were announced .*\(2, 3, 64, 80\).* of shape {shape}'
    for _ in range(2):
        with pytest.raises(ValueError, match=wanted):
            model(images)
    assert len(model(images, valid_sizes=[(8, 8)] * len(images))) == 1


@pytest.mark.parametrize('name', ['first images', 'window', 'channels'])
def test_a_part_of_a_batch_that_is_gone_is_refused(name):
    """``x = x[:1]`` leaves nothing but the part."""
    images = padded_batch()
    announce_sizes(images, SIZES)
    images = REFUSED[name](images)
    with pytest.raises(ValueError, match='valid_sizes must be passed to the backbone'):
        column()(images)


def test_a_batch_that_was_had_refuses_no_later_call():
    model, batch = column().eval(), padded_batch()
    announce_sizes(batch, SIZES)
    features(model, batch)
    for name, change in REFUSED.items():
        images = change(batch)
        assert torch.equal(features(model, images), features(model.eval(), images, None)), name


def test_every_backbone_gets_the_sizes():
    batch = padded_batch()
    announce_sizes(batch, SIZES)
    for model in (column().eval(), multi_scale().eval()):
        for images in (batch, batch.clone()):
            assert torch.equal(features(model, images), features(model, images, SIZES))


def test_an_argument_wins():
    model, batch = column().eval(), padded_batch()
    announce_sizes(batch, SIZES)
    sizes = [(64, 33), (20, 80)]
    assert torch.equal(features(model, batch, sizes), features(model, batch.clone(), sizes))
    assert not torch.equal(features(model, batch, sizes), features(model, batch))


def test_a_second_announcement_replaces_the_first():
    batch = padded_batch()
    announce_sizes(batch, SIZES)
    announce_sizes(batch, torch.tensor([[64, 33], [20, 80]]))
    assert announced_sizes(batch) == [(64, 33), (20, 80)]


def test_nothing_is_kept_of_a_batch_that_is_gone():
    model, batch = column().eval(), padded_batch()
    announce_sizes(batch, SIZES)
    features(model, batch.clone())
    features(model, batch)
    del batch
    assert not batches_in_memory()


def test_a_batch_that_no_backbone_had_refuses_no_call_once_it_is_gone():
    model, other = column().eval(), torch.rand(1, 3, 40, 40)
    batch = padded_batch()
    announce_sizes(batch, SIZES)
    with pytest.raises(ValueError, match='delete it first') as caught:
        features(model, other)
    del batch, caught  # the exception's traceback is in a cycle with this function
    features(model, other)
    announce_sizes(padded_batch(), SIZES)
    features(model, other)
    following = padded_batch()
    announce_sizes(following, [(64, 80)] * 2)  # the next step, after an exception in the last one
    assert batches_in_memory() == {following.data_ptr()}
    features(model, following)


@pytest.mark.parametrize('change', ['same', 'bfloat16'])
def test_several_batches_of_one_step(change):
    """As in semi-supervised detectors: each is told from the others, whichever comes first."""
    batches = [padded_batch() for _ in range(3)]
    sizes = [SIZES, [(64, 80)] * 2, [(40, 80), (64, 33)]]
    for batch, own in zip(batches, sizes, strict=True):
        announce_sizes(batch, own)
    model = column().eval()
    for index in (1, 2, 0):
        images = ARRIVES[change](batches[index])
        found = features(model, images)
        assert torch.equal(found, features(model, images, sizes[index]))


def test_equal_batches_with_other_sizes_are_refused():
    batches = [torch.zeros(2, 3, 64, 80) for _ in range(2)]
    announce_sizes(batches[0], SIZES)
    announce_sizes(batches[1], [(64, 80)] * 2)
    assert announced_sizes(batches[0]) == SIZES and announced_sizes(batches[1]) == [(64, 80)] * 2
    with pytest.raises(ValueError, match='equal to those of 2 batches'):
        announced_sizes(batches[0].clone())


def test_another_thread():
    """A thread of autograd finds the batch; one of other images is not disturbed."""
    model, batch, found = column().eval(), padded_batch(), {}
    announce_sizes(batch, SIZES)

    def run():
        found['other'] = announced_sizes(torch.rand(1, 3, 40, 40))
        found['same'] = features(model, batch.clone())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found['other'] is None
    assert torch.equal(found['same'], features(model, batch, SIZES))


@pytest.mark.parametrize('reentrant', [False, True])
@pytest.mark.parametrize('change', ['same', 'clone'])
def test_checkpointing_of_the_whole_backbone(reentrant, change):
    model, batch = randomise(column()).eval(), padded_batch()

    def gradients(run):
        model.zero_grad()
        run().square().sum().backward()
        return [p.grad.clone() for p in model.parameters() if p.grad is not None]

    wanted = gradients(lambda: model(batch, SIZES)[0])
    announce_sizes(batch, SIZES)
    images = ARRIVES[change](batch).requires_grad_()
    found = gradients(lambda: checkpoint(model, images, use_reentrant=reentrant)[0])
    torch.testing.assert_close(found, wanted)


class Announcing:
    """Collates as a user's function might, in a worker."""

    def __call__(self, images):
        batch = torch.stack(images)
        announce_sizes(batch, SIZES)
        return batch


@pytest.mark.full
def test_a_worker_of_the_loader_is_refused():
    loader = DataLoader([*padded_batch()], batch_size=2, num_workers=1, collate_fn=Announcing())
    with pytest.raises(ValueError, match='announce_sizes must be called in the process of the mod'):
        next(iter(loader))
    # Without workers, the collate function is in the process of the model.
    loader = DataLoader([*padded_batch()], batch_size=2, collate_fn=Announcing())
    assert announced_sizes(next(iter(loader))) == SIZES


def test_sizes_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match='at most 64 x 80, as the batch, got 65 x 80 for image 1'):
        announce_sizes(padded_batch(), [(64, 80), (65, 80)])


def test_a_traced_program_is_for_images_without_padding():
    model, batch = column().eval(), padded_batch()
    plain = features(model, batch)
    announce_sizes(batch, SIZES)
    with torch.no_grad():
        traced = torch.jit.trace(model, batch, check_trace=False)
        exported = torch.export.export(model, (batch,), strict=False).module()
        for program in (traced, exported):
            torch.testing.assert_close(program(batch)[0], plain, atol=1e-5, rtol=1e-5)
        assert torch.equal(model(batch)[0], model(batch, SIZES)[0])


@pytest.fixture
def gloo(tmp_path):
    if not torch.distributed.is_available():
        pytest.skip('torch has no distributed package')
    torch.distributed.init_process_group(
        'gloo', init_method=f'file://{tmp_path}/store', rank=0, world_size=1
    )
    yield
    torch.distributed.destroy_process_group()


def _ddp(model):
    return torch.nn.parallel.DistributedDataParallel(model)


def _fsdp(model, **options):
    from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision

    precision = MixedPrecision(param_dtype=torch.bfloat16, **options)
    return FullyShardedDataParallel(
        model, device_id=torch.device('cpu'), use_orig_params=True, mixed_precision=precision
    )


def _fsdp2(model):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    precision = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    fully_shard(model, mesh=init_device_mesh('cpu', (1,)), mp_policy=precision)
    return model


@pytest.mark.full
@pytest.mark.parametrize('wrap', [_ddp, _fsdp, _fsdp2])
def test_distributed_wrappers(wrap, gloo):
    model, batch = randomise(column()).eval(), padded_batch()
    with torch.no_grad():
        wanted = model(batch, SIZES)[0]
        padded = model(batch.clone())[0]
    # bfloat16 keeps eight bits; a dozen roundings on the way to a feature add up.
    tolerance = 1e-6 if wrap is _ddp else 12 * 2**-8 * wanted.abs().max()
    assert (padded - wanted).abs().max() > 4 * tolerance
    announce_sizes(batch, SIZES)
    with torch.no_grad():
        found = wrap(model)(batch)[0].float()
    assert (found - wanted).abs().max() <= tolerance
