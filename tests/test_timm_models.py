"""The backbones as timm models: what timm's scripts, optimizers and feature extractors call."""

import pickle
from copy import deepcopy

import pytest
import torch
from tiny import COLUMN, PYRAMID, only, randomise

from cpvt_backbones import CPVT, PEG, MultiScaleCPVT, PyramidCPVT, list_archs
from cpvt_backbones.backbones import announce_sizes
from cpvt_backbones.checkpoints import CheckpointError
from cpvt_backbones.weights import find_shipped

timm = pytest.importorskip('timm', '1.0.3')
optim = pytest.importorskip('timm.optim')
features = pytest.importorskip('timm.models._features')
pytest.importorskip('cpvt_backbones.timm_models')
CLASSES = dict(cpvt=CPVT, cpvt_gap=CPVT, multiscale_cpvt=MultiScaleCPVT, pyramid_cpvt=PyramidCPVT)
SIZES = ((64, 64), (50, 70), (33, 97))
SHIPPED = 'cpvt_tiny_gap-imagenette'


def tiny(family, **arguments):
    arch = PYRAMID if family == 'pyramid_cpvt' else COLUMN
    name = 'cpvt_tiny_gap' if family == 'cpvt_gap' else f'{family}_tiny'
    return timm.create_model(name, **{'arch': arch, 'img_size': 64, **arguments})


def gradients(model, images):
    model.zero_grad()
    model(images).square().sum().backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def equal(a, b):
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


# -- names and configs
# --------------------------------------------------------------------------------------------------


def test_every_size_has_a_name():
    archs = list_archs()
    names = {f'cpvt_{arch}{kind}' for arch in archs['CPVT'] for kind in ('', '_gap')}
    names |= {f'multiscale_cpvt_{arch}' for arch in archs['MultiScaleCPVT']}
    # timm has PVTv2 itself.
    pyramids = [arch for arch in archs['PyramidCPVT'] if not arch.startswith('pvtv2')]
    names |= {f'pyramid_cpvt_{arch}' for arch in pyramids}
    assert set(timm.list_models(module='timm_models')) == names


NAMES = timm.list_models(module='timm_models')
TINY = [name for name in NAMES if 'tiny' in name]


@pytest.mark.parametrize('name', only(*TINY, of=NAMES))
def test_the_config_names_parameters_of_the_model(name):
    with torch.device('meta'):
        model = timm.create_model(name)
    config, keys = model.pretrained_cfg, model.state_dict().keys()
    assert config['architecture'] == name and not config['fixed_input_size']
    assert {f'{config[part]}.weight' for part in ('first_conv', 'classifier')} <= keys
    assert timm.data.resolve_model_data_config(model)['input_size'] == config['input_size']
    assert model.num_classes == config['num_classes'] == model.get_classifier().out_features
    plain = model.plain(**model._trunk_arguments()).state_dict().keys()
    assert keys - plain == {'head.weight', 'head.bias'} and not plain - keys


# -- classification
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize('pool', ['avg', 'max', 'avgmax', 'token'])
@pytest.mark.parametrize('family', CLASSES)
def test_the_head_follows_the_features(family, pool):
    if pool == 'token' and family != 'cpvt':
        with pytest.raises(ValueError, match="global_pool must be one of .*, got 'token'"):
            tiny(family, global_pool=pool)
        return
    model = randomise(tiny(family, num_classes=7, global_pool=pool)).eval()
    images = torch.randn(2, 3, 50, 70)
    with torch.no_grad():
        features = model.forward_features(images)
        pooled = model.forward_head(features, pre_logits=True)
        logits = model(images)
        assert torch.equal(logits, model.forward_head(features))
        assert torch.equal(logits, model.get_classifier()(pooled)) and logits.shape == (2, 7)
        tokens = features if features.dim() == 3 else features.flatten(2).transpose(1, 2)
        patches = tokens[:, family == 'cpvt' :]
        mean, most = patches.mean(1), patches.amax(1)
        wanted = dict(avg=mean, max=most, avgmax=(mean + most) / 2, token=tokens[:, 0])[pool]
        torch.testing.assert_close(pooled, wanted)
        assert pooled.shape == (2, model.num_features) == (2, model.head_hidden_size)
        model.reset_classifier(0)
        assert torch.equal(model(images), pooled) and model.num_classes == 0
        model.reset_classifier(0, '')
        assert torch.equal(model(images), features) and model.global_pool == ''
        model.reset_classifier(3, 'avg')
        assert model(images).shape == (2, 3)
        assert torch.equal(tiny(family, num_classes=0).eval().get_classifier()(pooled), pooled)


@pytest.mark.parametrize('family', CLASSES)
def test_a_class_loss_trains_every_parameter(family):
    model = tiny(family, num_classes=5, drop_rate=0.1, proj_drop_rate=0.1, drop_path_rate=0.1)
    grads = gradients(model.train(), torch.randn(2, 3, 64, 64))
    assert [name for name, grad in grads.items() if grad is None or not grad.any()] == []


def test_logits_of_twins_are_those_of_timm():
    """Weights with the head, through timm's own loading."""
    peer = timm.create_model('twins_pcpvt_small', num_classes=11).eval()
    overlay = dict(state_dict=peer.state_dict(), num_classes=11)
    model = timm.create_model(
        'pyramid_cpvt_small', pretrained=True, pretrained_cfg_overlay=overlay
    ).eval()
    images = torch.randn(1, 3, 64, 96)
    with torch.no_grad():
        torch.testing.assert_close(model(images), peer(images), rtol=0, atol=1e-5)


# -- features
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize('out_indices', [None, (0, 2), (-1, 1), 2])
@pytest.mark.parametrize('family', CLASSES)
def test_features_are_those_of_the_backbone(family, out_indices):
    model = randomise(tiny(family, features_only=True, out_indices=out_indices)).eval()
    info, images = model.feature_info, torch.randn(2, 3, 50, 70)
    column = family.startswith('cpvt')
    kept = ((1, 2, 3) if column else (0, 1, 2, 3)) if out_indices is None else out_indices
    kept = (2, 3) if kept == 2 else kept
    inner = model.model
    arguments = dict(inner._trunk_arguments(), out_indices=kept)
    plain = CLASSES[family](**arguments).eval()
    plain.load_state_dict(inner.state_dict())
    with torch.no_grad():
        maps = model(images)
        assert equal(maps, plain(images))
    assert all(feature_map.is_contiguous() for feature_map in maps)
    assert tuple(info.channels()) == plain.out_channels
    assert tuple(info.reduction()) == plain.out_strides
    assert {name for name, _ in inner.named_modules()} >= set(info.module_name())


@pytest.mark.parametrize('family', CLASSES)
def test_the_options_of_forward_intermediates(family):
    model = randomise(tiny(family, num_registers=2) if family == 'cpvt' else tiny(family)).eval()
    images = torch.randn(2, 3, 50, 70)
    with torch.no_grad():
        final, maps = model.forward_intermediates(images)
        assert torch.equal(final, model.forward_features(images))
        assert [m.shape[1] for m in maps] == [info['num_chs'] for info in model.feature_info]
        assert equal(model.forward_intermediates(images, 2, intermediates_only=True), maps[-2:])
        tokens = model.forward_intermediates(
            images, [1, -1], output_fmt='NLC', intermediates_only=True
        )
        assert equal(tokens, [maps[i].flatten(2).transpose(1, 2) for i in (1, -1)])
        normed = model.forward_intermediates(images, norm=True, intermediates_only=True)
        found = model.forward_intermediates(images, output_dict=True, return_prefix_tokens=True)
        assert torch.equal(found['image_features'], final)
        assert equal(found['image_intermediates'], maps)
    if family == 'multiscale_cpvt':
        assert equal(normed, maps) and 'image_intermediates_prefix' not in found
        return
    last = normed[-1].flatten(2).transpose(1, 2)
    if family == 'pyramid_cpvt':
        assert torch.equal(normed[-1], final) and equal(normed[:-1], maps[:-1])
    elif family == 'cpvt_gap':
        assert torch.equal(last, final)
    else:
        assert torch.equal(last, final[:, 3:])
        prefix = found['image_intermediates_prefix']
        assert [p.shape for p in prefix] == [(2, 3, 24)] * 4
        with torch.no_grad():
            pairs = model.forward_intermediates(
                images, [3], return_prefix_tokens=True, norm=True, intermediates_only=True
            )
        assert equal(pairs[0], (normed[-1], final[:, :3]))


@pytest.mark.parametrize('family', ['cpvt', 'pyramid_cpvt'])
def test_stop_early_runs_no_later_block(family):
    model = tiny(family).eval()
    images = torch.randn(1, 3, 40, 40)
    with torch.no_grad():
        wanted = model.forward_intermediates(images, [1], intermediates_only=True)
        model.blocks[3] = torch.nn.ModuleList([torch.nn.Module()])  # cannot run
        stopped, maps = model.forward_intermediates(images, [1], stop_early=True)
        assert equal(maps, wanted) and stopped.isfinite().all()
        with pytest.raises((NotImplementedError, TypeError)):
            model.forward_intermediates(images, [1])


@pytest.mark.parametrize('family', CLASSES)
def test_padding_is_left_out(family):
    """Padded images whose sizes are announced give what they give alone."""
    model = randomise(tiny(family, num_classes=3)).double().eval()
    alone = [torch.randn(1, 3, 40, 33, dtype=torch.float64), torch.randn(1, 3, 50, 70).double()]
    batch = torch.randn(2, 3, 50, 70, dtype=torch.float64)
    for row, image in zip(batch, alone, strict=True):
        row[:, : image.shape[2], : image.shape[3]] = image[0]
    announce_sizes(batch, [tuple(image.shape[2:]) for image in alone])
    with torch.no_grad():
        torch.testing.assert_close(model(batch), torch.cat([model(image) for image in alone]))
        maps = model.forward_intermediates(batch, intermediates_only=True)
        small = model.forward_intermediates(alone[0], intermediates_only=True)
        for whole, part in zip(maps, small, strict=True):
            h, w = part.shape[2:]
            torch.testing.assert_close(whole[:1, :, :h, :w], part)
        with pytest.raises(ValueError, match='valid_sizes must be None unless output_fmt'):
            model.forward_intermediates(batch)
        with pytest.raises(ValueError, match='forward_features must get images without padding'):
            model.forward_features(batch)


# -- training
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize('family', CLASSES)
def test_layer_decay(family):
    model = tiny(family, num_classes=5)
    groups = optim.param_groups_layer_decay(model, layer_decay=0.5)
    scales = {id(p): group['lr_scale'] for group in groups for p in group['params']}
    wanted = {}
    for name, parameter in model.named_parameters():
        depth, layers = model.get_layer_depth(name)
        wanted[name] = 0.5 ** (layers - 1 - depth)
        assert scales[id(parameter)] == wanted[name], name
    assert wanted['head.weight'] == 1 and min(wanted.values()) == 0.5 ** (layers - 1)
    stages = timm.models.group_parameters(model, model.group_matcher(coarse=True), reverse=True)
    assert set(stages.values()) == set(range(len(model.depths) + 2))


@pytest.mark.parametrize('family', CLASSES)
def test_weight_decay_spares_position_encodings(family):
    model = tiny(family, num_classes=5)
    optimizer = optim.create_optimizer_v2(model, opt='adamw', lr=1e-3, weight_decay=0.05)
    spared = {id(p) for g in optimizer.param_groups if not g['weight_decay'] for p in g['params']}
    names = {name for name, p in model.named_parameters() if id(p) in spared}
    assert model.no_weight_decay() <= names
    assert {'norm.weight', 'head.bias', 'pos_block.0.proj.0.weight'} <= names
    assert 'head.weight' not in names


@pytest.mark.parametrize('family', CLASSES)
def test_grad_checkpointing_keeps_gradients(family):
    model, images = tiny(family, num_classes=5).train(), torch.randn(2, 3, 40, 50)
    wanted = gradients(model, images)
    model.set_grad_checkpointing()
    assert model.with_cp
    for name, grad in gradients(model, images).items():
        torch.testing.assert_close(grad, wanted[name], msg=name)
    model.set_grad_checkpointing(False)
    assert not model.with_cp


# -- saving, loading, recording
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize('features', [False, True])
@pytest.mark.parametrize('family', CLASSES)
def test_models_are_pickled_and_copied(family, features, tmp_path):
    model = tiny(family, features_only=features).eval()
    torch.save(model, tmp_path / 'model.pth')
    images = torch.randn(1, 3, 40, 50)
    loaded = torch.load(tmp_path / 'model.pth', weights_only=False)
    for other in (loaded, deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert equal(other(images), model(images))


@pytest.mark.parametrize('family', CLASSES)
def test_the_backbone_is_saved_for_this_package(family, tmp_path):
    model = randomise(tiny(family, num_classes=5)).eval()
    model.save_pretrained(tmp_path)
    backbone = CLASSES[family].from_pretrained(tmp_path).eval()
    images = torch.randn(1, 3, 40, 50)
    with torch.no_grad():
        wanted = model.forward_intermediates(images, norm=True, intermediates_only=True)
        wanted = wanted[-1:] if family.startswith('cpvt') else wanted
        assert equal(backbone(images), wanted)


@pytest.mark.parametrize('family', CLASSES)
def test_the_model_is_saved_for_timm(family, tmp_path):
    model = randomise(tiny(family, num_classes=5, in_chans=4)).eval()
    timm.models.save_for_hf(model, tmp_path, safe_serialization=True)
    loaded = timm.create_model(f'local-dir:{tmp_path}', pretrained=True).eval()
    images = torch.randn(1, 4, 40, 50)
    assert torch.equal(loaded(images), model(images))


@pytest.mark.parametrize('family', CLASSES)
def test_reparameterize_model(family):
    model = randomise(tiny(family, num_classes=5)).double().eval()
    fused = timm.utils.reparameterize_model(model)
    pegs = [module for module in fused.modules() if isinstance(module, PEG)]
    assert pegs and all(peg.fused is not None for peg in pegs)
    assert all(module.fused is None for module in model.modules() if isinstance(module, PEG))
    images = torch.randn(2, 3, 50, 70, dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(fused(images), model(images))


@pytest.mark.parametrize('family', [*CLASSES, 'windows'])
def test_graphs_take_every_size(family):
    """Also one in which windows are padded."""
    options = {}
    if family == 'windows':
        family, options = 'pyramid_cpvt', dict(arch=dict(PYRAMID, window_size=3))
    model = randomise(tiny(family, num_classes=5, **options)).eval()
    graph, script = torch.fx.symbolic_trace(model), torch.jit.script(model)
    with torch.no_grad():
        for size in SIZES:
            images = torch.randn(2, 3, *size)
            wanted = model(images)
            torch.testing.assert_close(graph(images), wanted)
            torch.testing.assert_close(script(images), wanted)
    with pytest.raises(RuntimeError, match='takes a model in evaluation mode'):
        torch.jit.script(model.train())


def test_the_shipped_classifier():
    """By its tag, by ``checkpoint_path`` and by an overlay; with the head."""
    shipped = find_shipped(SHIPPED)
    path, count = str(shipped.file), len(shipped.dataset_meta['classes'])
    overlay = dict(file=path, num_classes=count)
    models = [
        timm.create_model('cpvt_tiny_gap.imagenette', pretrained=True),
        timm.create_model('cpvt_tiny_gap', num_classes=count, checkpoint_path=path),
        timm.create_model('cpvt_tiny_gap', pretrained=True, pretrained_cfg_overlay=overlay),
    ]
    weights = models[0].state_dict()
    assert models[0].pretrained_cfg['label_names'] == tuple(shipped.dataset_meta['classes'])
    for model in models[1:]:
        assert all(torch.equal(value, weights[key]) for key, value in model.state_dict().items())
    backbone = CPVT.from_pretrained(SHIPPED).eval()
    images = torch.randn(1, 3, 112, 80)
    with torch.no_grad():
        pooled = models[0].eval().forward_head(models[0].forward_features(images), pre_logits=True)
        torch.testing.assert_close(pooled, backbone(images)[0])
    other = timm.create_model('cpvt_tiny_gap.imagenette', pretrained=True, num_classes=4)
    assert torch.equal(other.blocks[3].mlp.fc1.weight, weights['blocks.3.mlp.fc1.weight'])


@pytest.mark.parametrize('channels', [1, 4])
def test_other_channels(channels):
    """RGB weights are fitted as timm fits them."""
    source = tiny('cpvt', num_classes=5)
    overlay = dict(state_dict=source.state_dict(), num_classes=5)
    model = tiny('cpvt', in_chans=channels, pretrained=True, pretrained_cfg_overlay=overlay)
    weight = source.patch_embed.proj.weight
    wanted = timm.models.adapt_input_conv(channels, weight)
    torch.testing.assert_close(model.patch_embed.proj.weight, wanted)
    assert torch.equal(model.head.weight, source.head.weight) and model.in_chans == channels
    assert model(torch.randn(1, channels, 40, 50)).shape == (1, 5)


def test_wrong_arguments():
    with pytest.raises(RuntimeError, match='No pretrained weights exist for cpvt_tiny'):
        timm.create_model('cpvt_tiny', pretrained=True)
    with pytest.raises(ValueError, match='num_classes must be an integer >= 0, got -3'):
        tiny('cpvt', num_classes=-3)
    with pytest.raises(TypeError, match="TimmCPVT has no argument 'shape'"):
        tiny('cpvt', shape='round')
    model, images = (
        tiny('cpvt', features_only=True, out_indices=(0, 2)).model,
        torch.randn(1, 3, 8, 8),
    )
    with pytest.raises(ValueError, match=r'indices must be among those built, .* got \[3\]'):
        model.forward_intermediates(images, [3])
    with pytest.raises(ValueError, match="output_fmt must be one of .*, got 'NHWC'"):
        model.forward_intermediates(images, [2], output_fmt='NHWC')
    overlay = dict(state_dict={'blocks.0.norm1.weight': torch.ones(24)})
    with pytest.raises(CheckpointError):
        tiny('cpvt', pretrained=True, pretrained_cfg_overlay=overlay)
