"""The backbones in timm, and every block of docs/bridges.md."""

import re
from pathlib import Path

import pytest
import torch
from tiny import COLUMN, PYRAMID, randomise

from cpvt_backbones import CPVT, list_archs
from cpvt_backbones.checkpoints import CheckpointError, read_checkpoint

timm = pytest.importorskip('timm', '1.0.3')
timm_models = pytest.importorskip('cpvt_backbones.timm_models')
PAGE = Path(__file__).parents[1] / 'docs' / 'bridges.md'
BLOCKS = re.findall(
    r'^## (.*?)\n|^```python\n(.*?)^```', PAGE.read_text(encoding='utf-8'), re.MULTILINE | re.DOTALL
)
CLASSES = timm_models.NAMES


def blocks():
    for title, block in BLOCKS:
        if title:
            section = title
        else:
            yield pytest.param(block, id=section)


@pytest.mark.parametrize('block', list(blocks()))
def test_the_page(block):
    for library in ('segmentation_models_pytorch', 'transformers', 'mmseg', 'mmpretrain'):
        if re.search(rf'^(import|from) {library}\b', block, re.MULTILINE):
            pytest.importorskip(library, exc_type=ImportError)
    exec(compile(block, str(PAGE), 'exec'), {})


def tiny(prefix, **arguments):
    arch = PYRAMID if prefix == 'pyramid_cpvt' else COLUMN
    return timm.create_model(f'{prefix}_tiny', arch=arch, img_size=64, **arguments).eval()


def test_every_size_has_a_name():
    names = [
        f'{prefix}_{arch}' for prefix, cls in CLASSES.items() for arch in list_archs()[cls.__name__]
    ]
    assert set(timm.list_models(module='timm_models')) == set(names)


@pytest.mark.parametrize('out_indices', [None, (0, 2), (-1, 1), 2])
@pytest.mark.parametrize('prefix', CLASSES)
def test_features_are_those_of_the_backbone(prefix, out_indices):
    model = randomise(tiny(prefix, features_only=True, out_indices=out_indices))
    info, images = model.feature_info, torch.randn(2, 3, 50, 70)
    kept = dict(cpvt=(1, 2, 3)).get(prefix, (0, 1, 2, 3)) if out_indices is None else out_indices
    kept = (2, 3) if kept == 2 else kept
    extra = dict(final_norm=False) if prefix == 'cpvt' else {}
    arch = PYRAMID if prefix == 'pyramid_cpvt' else COLUMN
    plain = CLASSES[prefix](arch=arch, img_size=64, out_indices=kept, **extra).eval()
    plain.load_state_dict(model.model.state_dict())
    with torch.no_grad():
        maps, wanted = model(images), plain(images)
    assert all(torch.equal(a, b) for a, b in zip(maps, wanted, strict=True))
    assert (
        tuple(info.channels()) == plain.out_channels
        and tuple(info.reduction()) == plain.out_strides
    )
    assert {name for name, _ in model.model.named_modules()} >= set(info.module_name())


@pytest.mark.parametrize('prefix', CLASSES)
def test_every_parameter_is_trained(prefix):
    model = tiny(prefix, features_only=True, out_indices=(0, 2)).train()
    sum(feature_map.square().sum() for feature_map in model(torch.randn(2, 3, 64, 64))).backward()
    unused = [name for name, parameter in model.named_parameters() if parameter.grad is None]
    assert unused == []


def test_weights_of_timm():
    """The pyramid is timm's Twins: same weights, same maps."""
    peer = timm.create_model('twins_pcpvt_small', features_only=True).eval()
    model = timm.create_model('pyramid_cpvt_small', features_only=True).eval()
    assert not model.load_state_dict(peer.state_dict(), strict=False).missing_keys
    images = torch.randn(1, 3, 64, 96)
    with torch.no_grad():
        for ours, theirs in zip(model(images), peer(images), strict=True):
            torch.testing.assert_close(
                ours, theirs, rtol=0, atol=1e-5 * max(1, theirs.abs().max().item())
            )


def test_a_checkpoint_is_loaded(tmp_path):
    CPVT(arch=COLUMN, img_size=64).save_pretrained(tmp_path)
    model = tiny('cpvt', features_only=True, checkpoint=tmp_path, pretrained=True)
    weights = read_checkpoint(tmp_path)
    assert torch.equal(model.model.blocks[3].mlp.fc1.weight, weights['blocks.3.mlp.fc1.weight'])


def test_wrong_arguments():
    with pytest.raises(CheckpointError, match=r"timm has no weights of the name 'cpvt_tiny.in1k'"):
        timm.create_model('cpvt_tiny', pretrained=True)
    with pytest.raises(ValueError, match='num_classes must be 0: there is no class layer, got 10'):
        timm.create_model('cpvt_tiny', num_classes=10)
    with pytest.raises(TypeError, match="unexpected keyword argument 'shape'"):
        timm.create_model('cpvt_tiny', shape='round')
    model, images = (
        tiny('cpvt', features_only=True, out_indices=(0, 2)).model,
        torch.randn(1, 3, 32, 32),
    )
    with pytest.raises(ValueError, match=r'indices must be among those built, \(0, 2\), got \[3\]'):
        model.forward_intermediates(images, [3])
    with pytest.raises(ValueError, match='norm must be left at its default, got True'):
        model.forward_intermediates(images, [2], norm=True)
