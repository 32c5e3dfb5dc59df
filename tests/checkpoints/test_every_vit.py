"""Every model of timm that is recognised either computes here what it computes there, or is
refused.

The model of this package that fits best is built from the keys and from what no key shows
(activation, epsilon, rotary mode). Whatever loads into it must agree, at the native size and at two
others.
"""

import re

import pytest
import torch
from peers import misfit, scaled
from tiny import max_difference

from cpvt_backbones import CPVT, PyramidCPVT, convert_state_dict
from cpvt_backbones.checkpoints import (
    CheckpointError,
    load_checkpoint,
    public_backbone,
    recognise_backbone,
)
from cpvt_backbones.checkpoints.conversion.families import known_to_differ
from cpvt_backbones.checks import list_of_dicts

timm = pytest.importorskip('timm')

ACTIVATIONS = dict(QuickGELU='quick_gelu', GELUTanh='gelu_tanh')
BITS = dict(embed_dim=48, depth=3, num_heads=4)
# What a tiny model of each class takes; a class that takes none of it is refused by its keys alone.
OVERRIDES = {
    'cait': dict(embed_dim=48, depth=2, num_heads=4),
    'convit': dict(embed_dim=12, depth=3, num_heads=4, local_up_to_layer=2),
    'hiera': dict(embed_dim=8, num_heads=1, stages=(1, 1, 1, 1)),
    'hieradet_sam2': dict(embed_dim=8, num_heads=1, stages=(1, 1, 1, 1), global_att_blocks=()),
    'twins': dict(embed_dims=(8, 16, 24, 32), num_heads=(1, 2, 3, 4), depths=(1, 2, 1, 1)),
    'xcit': dict(embed_dim=48, depth=2, num_heads=4),
}
MODULES = """
    beit cait convit deepseek_vit deit eva hiera hieradet_sam2 naflexvit qwen3_vit twins
    vision_transformer vision_transformer_relpos vision_transformer_sam xcit
""".split()
NAMES = sorted(name for module in MODULES for name in timm.list_models(module=module))
# One of each class and of each way to differ; `make test-all` takes all, and those with a public
# name are compared in tests/backbones/test_public_weights.py, too. These must load:
LOADED = """
    deit3_small_patch16_224 deit_tiny_distilled_patch16_224 eva02_tiny_patch14_224
    flexivit_small samvit_base_patch16_224 test_vit test_vit2 test_vit3 twins_pcpvt_small
    twins_svt_small vit_base_patch14_reg4_dinov2 vit_base_patch16_siglip_224
    vit_pe_core_tiny_patch16_384 vit_pe_lang_gigantic_patch14_448 vit_pe_spatial_tiny_patch16_512
    vit_small_patch16_dinov3_qkvb vit_small_patch16_rope_mixed_ape_224
    vit_small_plus_patch16_dinov3 vit_so400m_patch14_siglip_gap_224 vit_wee_patch16_reg1_gap_256
""".split()
# and these must agree or be refused, some for a reason that is known.
OTHERS = """
    beit3_base_patch16_224 beit_base_patch16_224 cait_xxs24_224 convit_tiny
    eva02_base_patch14_224 eva02_enormous_patch14_clip_224 naflexvit_base_patch16_gap test_vit4
    vit_base_patch16_18x2_224 vit_base_patch16_rpn_224 vit_base_patch16_xp_224
    vit_relpos_small_patch16_224 vit_srelpos_small_patch16_224 xcit_nano_12_p16_224
""".split()
REASONS = {
    'vit_srelpos_small_patch16_224': 'whose relative positions come from an MLP or a shared table',
    'vit_relpos_small_patch16_224': 'whose relative positions come from an MLP or a shared table',
    'beit_base_patch16_224': 'relative_position_bias_table: a relative position bias',
    'test_vit4': r'lacks \d+ keys of the model: blocks\.0\.norm1\.bias',
}


def tiny_timm(name):
    """The model with narrow, few blocks."""
    module = timm.models._registry._model_to_module[name]
    options = dict(OVERRIDES.get(module, BITS))
    if module in ('vision_transformer', 'deit') or (module == 'eva' and 'dinov3' not in name):
        options['dynamic_img_size'] = True
    if 'sapiens2' in name:  # its number of key heads is given block by block
        options['num_kv_heads'] = [4] * options['depth']
    return scaled(timm.create_model(name, num_classes=7, **options))


def fitted(theirs, state, mode):
    """The model of this package that the keys ask for, with what no key shows."""
    found, _ = recognise_backbone(state, {})
    arguments, block = found.arguments, theirs.blocks[0]
    found_position = list_of_dicts('position', arguments['position'])
    position = [one for one in found_position if one['type'] == 'DecomposedRelative']
    if found.table_entries is not None:  # timm resizes every table as this package does
        position.insert(0, dict(type='Learned'))
    if mode:
        position.append(dict(type='RoPE', mode=mode))
        if mode != 'mixed' and hasattr(theirs.rope, 'temperature'):
            position[-1]['temperature'] = theirs.rope.temperature
    patch = arguments['patch_size']
    arguments |= dict(
        arch={**arguments['arch'], 'num_heads': block.attn.num_heads},
        img_size=tuple(side * patch for side in theirs.patch_embed.grid_size),
        position=position,
        norm_eps=getattr(block.norm1, 'eps', 1e-6),
        out_type='raw',
    )
    if arguments.get('activation') != 'swiglu':
        arguments['activation'] = ACTIVATIONS.get(type(block.mlp.act).__name__, 'gelu')
    if 'window_size' in found.unclear:  # SAM for an image as large as a window
        sides = [one.window_size for one in theirs.blocks]
        arguments['window_size'] = max(sides)
        arguments['global_blocks'] = [index for index, side in enumerate(sides) if not side]
    return CPVT(**arguments)


def mode_of(theirs):
    rope = getattr(theirs, 'rope', None)
    modes = dict(RotaryEmbeddingMixed='mixed', RotaryEmbeddingDinoV3='dinov3')
    if type(rope).__name__ == 'RotaryEmbeddingCat':
        if rope.ref_feat_shape is None:
            return 'axial'
        return 'pe' if rope.grid_indexing == 'xy' else 'eva'
    return modes.get(type(rope).__name__)


def compare_or_refuse(name):
    """Largest relative difference at three sizes, and ''; or ``None`` and the refusal."""
    theirs = tiny_timm(name)
    try:
        ours, converted = build(theirs, theirs.state_dict(), mode_of(theirs))
    except CheckpointError as error:
        return None, str(error)
    ours.load_state_dict(converted, strict=True)
    return max(compare(ours.eval(), theirs)), ''


def build(theirs, state, mode):
    first = theirs.blocks[0] if hasattr(theirs, 'blocks') else None
    if type(theirs).__name__ == 'Twins':
        arch = dict(
            depths=theirs.depths,
            embed_dims=(8, 16, 24, 32),
            num_heads=(1, 2, 3, 4),
            mlp_ratios=(8.0, 8.0, 4.0, 4.0),
            sr_ratios=(8, 4, 2, 1),
        )
        if 'blocks.0.0.attn.qkv.weight' in state:  # Twins-SVT
            arch |= dict(mlp_ratios=(4.0,) * 4, window_size=7)
        options = dict(final_norm=True, out_type='raw', out_indices=-1)
        ours = PyramidCPVT(arch=arch, mask_window_padding=False, **options)
    elif 'patch_embed.proj.weight' not in state or not hasattr(
        getattr(first, 'attn', None), 'num_heads'
    ):
        ours = CPVT(arch=dict(embed_dims=48, depth=3, num_heads=4, mlp_ratio=4.0))
    else:
        ours = fitted(theirs, state, mode)
    return ours, convert_state_dict(state, ours)[0]


def compare(ours, theirs):
    stride = ours.out_strides[-1]
    native = theirs.default_cfg['input_size'][1]
    native = min(native, 24 * stride)
    sizes = [(native, native), (4 * stride, 7 * stride), (9 * stride, 3 * stride)]
    for size in sizes:
        images = torch.randn(1, 3, *size)
        with torch.inference_mode():
            wanted = tokens(theirs, images)
            got = ours(images)[0]
        assert got.shape == wanted.shape
        yield max_difference(got, wanted) / max(1, wanted.abs().max().item())


def tokens(theirs, images):
    if hasattr(theirs, 'neck'):  # of SAM
        options = dict(indices=1, norm=False, intermediates_only=True)
        return theirs.forward_intermediates(images, **options)[0].flatten(2).mT
    wanted = theirs.forward_features(images)
    fc_norm = getattr(theirs, 'fc_norm', None)
    if isinstance(getattr(theirs, 'norm', None), torch.nn.Identity) and fc_norm is not None:
        wanted = fc_norm(wanted)  # of each token, as this package does
    return wanted


def check(name, record):
    if reason := known_to_differ(f'timm://{name}.tag'):
        record('refused', reason)
        return
    difference, refusal = compare_or_refuse(name)
    if refusal:
        record('refused', refusal)
        assert re.search(
            REASONS.get(name, 'recognised|does not fit|wrong archi|no backbone here'), refusal
        )
        assert name not in LOADED
    else:
        record('difference', f'{difference:.1e}')
        assert difference <= 1e-5 and name not in REASONS


UNNAMED = [name for name in LOADED if public_backbone(f'timm://{name}') is None]


@pytest.mark.parametrize('name', UNNAMED + OTHERS)
def test_a_vit_of_timm_agrees_or_is_refused(name, record_property):
    check(name, record_property)


@pytest.mark.full
@pytest.mark.parametrize('name', NAMES)
def test_every_vit_of_timm_agrees_or_is_refused(name, record_property):
    check(name, record_property)


def test_names_of_models_that_no_key_tells_apart(tmp_path):
    """Post-norm blocks have the keys of others: the name is all that there is to know them by."""
    model = CPVT(arch=dict(embed_dims=48, depth=1, num_heads=4, mlp_ratio=2.0))
    for name in (
        'vit_base_patch16_rpn_224.sw_in1k.safetensors',
        'vit_base_patch16_rpn_224-sw-3b07e89d.pth',
    ):
        with pytest.raises(
            CheckpointError, match=rf'{re.escape(name)}.*normalise after attention and MLP'
        ):
            load_checkpoint(model, tmp_path / name)


@pytest.mark.parametrize(
    'name', ['faster_rcnn_rpn_2.pth', 'my_vit_pe_run.pth', 'rpn.pth', 'é_rpn_.pth']
)
def test_a_file_of_the_user_is_not_refused_for_its_name(name, tmp_path):
    model = CPVT(arch=dict(embed_dims=48, depth=1, num_heads=4, mlp_ratio=2.0))
    torch.save(model.state_dict(), tmp_path / name)
    load_checkpoint(model, tmp_path / name)


@pytest.mark.parametrize(
    ('name', 'ratio', 'message'),
    [
        ('vit_pe_core_tiny_patch16_384', 4.0, r'attn_pool\.latent: .* those of Perception'),
        ('eva02_tiny_patch14_224', 2.6667, r'attn\.q_bias: .* those of EVA-02'),
    ],
)
def test_a_rotary_encoding_without_a_key(name, ratio, message, tmp_path):
    """A model without it is refused, and one that is read from the weights has it."""
    theirs = tiny_timm(name)
    state = theirs.state_dict()
    misfit(message, state, fitted(theirs, state, None))
    torch.save(state, tmp_path / 'mine.pth')
    arch = dict(embed_dims=48, depth=3, num_heads=4, mlp_ratio=ratio)
    found = CPVT.from_pretrained(tmp_path / 'mine.pth', arch=arch, out_type='raw').eval()
    side = theirs.patch_embed.patch_size[0]
    images = torch.randn(1, 3, 3 * side, 5 * side)
    with torch.inference_mode():
        assert max_difference(found(images)[0], tokens(theirs, images)) < 1e-5
