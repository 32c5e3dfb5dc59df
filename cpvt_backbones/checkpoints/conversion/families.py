"""Step ``recognise``: kinds of checkpoints by their keys, and the rules that rename the keys."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from mmengine.logging import print_log
from torch import Tensor

from ..report import CheckpointError, Reason, shorten

Rule = tuple[str, str | Callable[[re.Match[str]], str]]
# Key without wrappers and prefixes to the key in the checkpoint and the tensor.
Found = dict[str, tuple[str, Tensor]]


@dataclass(frozen=True)
class Family:
    """A kind of checkpoint."""

    name: str  # in a report
    # Pattern of the start of a key in each such checkpoint. The first matching family is taken, so
    # narrow patterns come first in `SOURCES`.
    signature: str
    rules: tuple[Rule, ...] = ()  # patterns and replacements, applied to each key in this order
    # How the source resizes its position embedding, as arguments of `LearnedTable`; `None` if
    # unknown.
    table: Mapping[str, Any] | None = None
    layout: str = 'plain'  # (ViT, CPVT) or 'hierarchical' (PVT, Twins)
    # ViTDet and SAM: patch tokens attend to the padding of windows.
    attends_to_padding: bool = False

    def rename(self, key: str) -> str:
        """Return this package's name of a key.

        Keys of values that are split or joined later, such as ``attn.in_proj``, do not change; see
        :mod:`.renaming`.
        """
        for pattern, replacement in (*self.rules, *TABLE_AND_PEG_RULES):
            key = re.sub(pattern, replacement, key)
        return key


# A plain ViT has one embedding. The paper's listings name the convolution of a PEG `proj` or `pos`,
# alone, in a Sequential or in a list of several PEGs.
TABLE_AND_PEG_RULES: tuple[Rule, ...] = (
    (r'^pos_embed$', 'pos_embed.0'),
    (r'^pos_block\.(?:proj|pos)\.(?:0\.)?(weight|bias)$', r'pos_block.0.proj.0.\1'),
    (r'^pos_block\.(\d+)\.(?:proj|pos)\.(weight|bias)$', r'pos_block.\1.proj.0.\2'),
    (r'^pos_block\.(\d+)\.pos\.', r'pos_block.\1.proj.'),
    (r'^blocks\.(\d+)\.attn\.rel_pos_([hw])$', r'rel_pos_hw.\1.\2'),
    (r'^blocks\.(\d+)\.attn\.relative_position_bias_table$', r'rel_pos_bias.\1'),
)


def _short_projection(match: re.Match[str]) -> str:
    return f'.attn.{match[1][0]}_proj.'


_FFN: tuple[Rule, ...] = (
    (r'\.ffn\.layers\.0\.0\.', '.mlp.fc1.'),
    (r'\.ffn\.layers\.1\.', '.mlp.fc2.'),
)
_TORCH_ATTENTION: tuple[Rule, ...] = (
    (r'\.attn\.attn\.in_proj_(weight|bias)$', r'.attn.in_proj.\1'),
    (r'\.attn\.attn\.out_proj\.', '.attn.proj.'),
)
_MMDET_PVT: tuple[Rule, ...] = (
    (r'^layers\.(\d)\.0\.projection\.', r'patch_embeds.\1.proj.'),
    (r'^layers\.(\d)\.0\.norm\.', r'patch_embeds.\1.norm.'),
    (r'^layers\.(\d)\.1\.0\.pos_embed$', r'pos_embed.\1'),
    (r'^layers\.(\d)\.1\.(\d+)\.', lambda match: f'blocks.{match[1]}.{int(match[2]) - 1}.'),
    (r'^layers\.(\d)\.2\.', r'norm_after_stage\1.'),
    (r'\.ffn\.layers\.0\.', '.mlp.fc1.'),
    (r'\.ffn\.layers\.3\.', '.mlp.fc2.'),
    *_TORCH_ATTENTION,
)
_MMDET_PVTV2: tuple[Rule, ...] = (
    (r'^layers\.(\d)\.0\.projection\.', r'patch_embeds.\1.proj.'),
    (r'^layers\.(\d)\.0\.norm\.', r'patch_embeds.\1.norm.'),
    (r'^layers\.(\d)\.1\.(\d+)\.', r'blocks.\1.\2.'),
    (r'^layers\.(\d)\.2\.', r'norm_list.\1.'),
    (r'\.ffn\.layers\.0\.', '.mlp.fc1.'),
    (r'\.ffn\.layers\.1\.', '.mlp.dwconv.'),
    (r'\.ffn\.layers\.4\.', '.mlp.fc2.'),
    *_TORCH_ATTENTION,
)
_TIMM_PVTV2: tuple[Rule, ...] = (
    (r'^patch_embed\.', 'patch_embeds.0.'),
    (r'^stages\.(\d)\.downsample\.', r'patch_embeds.\1.'),
    (r'^stages\.(\d)\.blocks\.', r'blocks.\1.'),
    (r'^stages\.(\d)\.norm\.', r'norm_list.\1.'),
)
_PCPVT: tuple[Rule, ...] = (
    (r'^(?:layers|stages)\.(\d)\.(\d+)\.', r'blocks.\1.\2.'),
    (r'^patch_embeds\.(\d)\.projection\.', r'patch_embeds.\1.proj.'),
    (r'^position_encodings\.(\d)\.proj\.', r'pos_block.\1.proj.0.'),
    (r'^norm_after_stage3\.', 'norm.'),
    *_TORCH_ATTENTION,
    *_FFN,
)
_OPENMMLAB_VIT: tuple[Rule, ...] = (
    (r'^patch_embed\.projection\.', 'patch_embed.proj.'),
    (r'^ln1\.', 'norm.'),
    (r'^ln2\.', 'fc_norm.'),
    (r'^(?:pre_norm|ln_pre)\.', 'norm_pre.'),
    (r'^layers\.(\d+)\.', r'blocks.\1.'),
    (r'\.ln([12])\.', r'.norm\1.'),
    (r'\.attn\.gamma1\.weight$', '.ls1.gamma'),
    (r'\.ffn\.gamma2\.weight$', '.ls2.gamma'),
    (r'\.gamma_([12])$', r'.ls\1.gamma'),  # BEiT, mmseg's MAE
    *_TORCH_ATTENTION,
    *_FFN,
)
_CLIP: tuple[Rule, ...] = (
    (r'^conv1\.', 'patch_embed.proj.'),
    (r'^class_embedding$', 'cls_token'),
    (r'^positional_embedding$', 'pos_embed'),
    (r'^ln_pre\.', 'norm_pre.'),
    (r'^ln_post\.', 'norm.'),
    (r'^proj$', 'head.proj'),
    (r'^transformer\.resblocks\.(\d+)\.', r'blocks.\1.'),
    (r'\.ln_([12])\.', r'.norm\1.'),
    (r'\.attn\.in_proj_(weight|bias)$', r'.attn.in_proj.\1'),
    (r'\.attn\.out_proj\.', '.attn.proj.'),
    (r'\.mlp\.c_fc\.', '.mlp.fc1.'),
    (r'\.mlp\.c_proj\.', '.mlp.fc2.'),
    (r'\.ls_([12])\.gamma$', r'.ls\1.gamma'),
)
# transformers 5 has new names in memory, but its files keep those of transformers 4.
_TRANSFORMERS: tuple[Rule, ...] = (
    (r'^embeddings\.(cls_token|class_embedding)$', 'cls_token'),
    (r'^embeddings\.distillation_token$', 'dist_token'),
    (r'^embeddings\.register_tokens$', 'reg_token'),
    (r'^embeddings\.mask_token$', 'mask_token'),
    (r'^embeddings\.position_embedding(s|\.weight|s\.weight)$', 'pos_embed'),
    (r'^embeddings\.patch_embeddings?\.(projection\.)?', 'patch_embed.proj.'),
    (r'^pre_layrnorm\.', 'norm_pre.'),
    (r'^(post_layernorm|layernorm)\.', 'norm.'),
    (r'^(encoder\.|model\.)?layers?\.(\d+)\.', r'blocks.\2.'),
    (r'\.(layernorm_before|layer_norm1)\.', '.norm1.'),
    (r'\.(layernorm_after|layer_norm2)\.', '.norm2.'),
    (r'\.attention\.attention\.(query|key|value)\.', _short_projection),
    (r'\.(attention|self_attn)\.([qkv])_proj\.', r'.attn.\2_proj.'),
    (r'\.(attention|self_attn)\.(output\.dense|o_proj|out_proj)\.', '.attn.proj.'),
    (r'\.intermediate\.dense\.', '.mlp.fc1.'),
    (r'\.(output\.dense|mlp\.down_proj|mlp\.weights_out)\.', '.mlp.fc2.'),
    (r'\.mlp\.gate_proj\.', '.mlp.fc1_g.'),
    (r'\.layer_scale([12])\.lambda1$', r'.ls\1.gamma'),
    (r'\.lambda_([12])$', r'.ls\1.gamma'),  # BEiT
    (
        r'^(encoder\.relative_position_bias|shared_position_bias)\.relative_position_bias_table$',
        'rel_pos_bias.shared',
    ),
    (r'(\.attention\.attention)?\.relative_position_bias\.', '.attn.'),
)
# Hierarchical ViTs have one projection for queries and one for keys and values.
_PYRAMID_PROJECTIONS = dict(query='q', key='k_proj', value='v_proj')


def _pyramid_projection(match: re.Match[str]) -> str:
    return f'.attn.{_PYRAMID_PROJECTIONS[match[1]]}.'


_TRANSFORMERS_BLOCKS: tuple[Rule, ...] = (
    (r'\.layer_norm_([12])\.', r'.norm\1.'),
    (r'\.attention\.(?:self\.)?(query|key|value)\.', _pyramid_projection),
    (r'\.attention\.(?:self\.sequence|spatial)_reduction\.', '.attn.sr.'),
    (r'\.attention\.(?:self\.)?layer_norm\.', '.attn.norm.'),
    (r'\.attention\.(?:output\.dense|proj)\.', '.attn.proj.'),
    (r'\.mlp\.dense([12])\.', r'.mlp.fc\1.'),
    (r'\.mlp\.dwconv\.dwconv\.', '.mlp.dwconv.'),
)
_TRANSFORMERS_PVT: tuple[Rule, ...] = (
    (r'^encoder\.patch_embeddings\.(\d)\.position_embeddings$', r'pos_embed.\1'),
    (r'^encoder\.patch_embeddings\.\d\.cls_token$', 'cls_token'),
    (r'^encoder\.patch_embeddings\.(\d)\.projection\.', r'patch_embeds.\1.proj.'),
    (r'^encoder\.patch_embeddings\.(\d)\.layer_norm\.', r'patch_embeds.\1.norm.'),
    (r'^encoder\.layer_norm\.', 'norm.'),
    (r'^encoder\.block\.', 'blocks.'),
    *_TRANSFORMERS_BLOCKS,
)
_TRANSFORMERS_PVTV2: tuple[Rule, ...] = (
    (r'^encoder\.layers\.(\d)\.patch_embedding\.proj\.', r'patch_embeds.\1.proj.'),
    (r'^encoder\.layers\.(\d)\.patch_embedding\.layer_norm\.', r'patch_embeds.\1.norm.'),
    (r'^encoder\.layers\.(\d)\.layer_norm\.', r'norm_list.\1.'),
    (r'^encoder\.layers\.(\d)\.blocks\.', r'blocks.\1.'),
    *_TRANSFORMERS_BLOCKS,
)
_TRANSFORMERS_VITDET: tuple[Rule, ...] = (
    (r'^embeddings\.position_embeddings$', 'pos_embed'),
    (r'^embeddings\.projection\.', 'patch_embed.proj.'),
    (r'^encoder\.layer\.(\d+)\.', r'blocks.\1.'),
    (r'\.attention\.', '.attn.'),
)
# Names of the authors, of transformers and of mmpretrain.
_SAM: tuple[Rule, ...] = (
    (r'^patch_embed\.projection\.', 'patch_embed.proj.'),
    (r'^channel_reduction\.', 'neck.'),
    (r'^layers\.(\d+)\.', r'blocks.\1.'),
    (r'\.(?:layer_norm|ln)([12])\.', r'.norm\1.'),
    (r'\.mlp\.lin([12])\.', r'.mlp.fc\1.'),
    *_FFN,
)
_STAGE_PARTS = dict(
    patch_embed='patch_embeds.', pos_embed='pos_embed.', block='blocks.', norm='norm_after_stage'
)
_STAGE = r'^(patch_embed|pos_embed|block|norm)([1-4])(?=\.|$)'
_AUTHORS_PVT: tuple[Rule, ...] = (
    (_STAGE, lambda match: f'{_STAGE_PARTS[match[1]]}{int(match[2]) - 1}'),
)
_AUTHORS_PVTV2: tuple[Rule, ...] = (
    *_AUTHORS_PVT,
    (r'^norm_after_stage(\d)\.', r'norm_list.\1.'),
    (r'\.mlp\.dwconv\.dwconv\.', '.mlp.dwconv.'),
)
_TIMM_VIT: tuple[Rule, ...] = (
    (r'^(blocks\.\d+)\.gamma_([12])$', r'\1.ls\2.gamma'),
    (r'^register_tokens$', 'reg_token'),  # Meta's DINOv2
    (r'^storage_tokens$', 'reg_token'),  # Meta's DINOv3
    (r'\.mlp\.w12\.', '.mlp.fc1.'),  # Meta's DINOv2-g: gate and value
    (r'\.mlp\.w1\.', '.mlp.fc1_g.'),
    (r'\.mlp\.w2\.', '.mlp.fc1_x.'),
    (r'\.mlp\.w3\.', '.mlp.fc2.'),
)
_BICUBIC = dict(interpolation='bicubic', antialias=False)  # mmpretrain, mmseg, transformers
_SMOOTH_BICUBIC = dict(interpolation='bicubic', antialias=True)
_BILINEAR = dict(interpolation='bilinear', antialias=False)  # PVT
_TWINS = "Twins or PyramidCPVT, the authors', timm's or this package's names"

SOURCES: tuple[Family, ...] = (
    Family(
        "PVTv2, mmdet's names", r'layers\.\d\.1\.0\.norm1\.', _MMDET_PVTV2, layout='hierarchical'
    ),
    Family(
        "PVTv2, its authors' names",
        r'block[1-4]\.\d+\.mlp\.dwconv\.',
        _AUTHORS_PVTV2,
        layout='hierarchical',
    ),
    Family(
        "PVTv2, timm's names",
        r'stages\.\d\.blocks\.\d+\.mlp\.dwconv\.',
        _TIMM_PVTV2,
        layout='hierarchical',
    ),
    Family(
        "PVTv2, transformers' names",
        r'encoder\.layers\.\d\.blocks\.\d+\.mlp\.dwconv\.',
        _TRANSFORMERS_PVTV2,
        layout='hierarchical',
    ),
    Family(
        "PVT, transformers' names",
        r'encoder\.patch_embeddings\.\d\.position_embeddings$',
        _TRANSFORMERS_PVT,
        _BILINEAR,
        'hierarchical',
    ),
    Family(
        "PVT, mmdet's names", r'layers\.\d\.0\.projection\.', _MMDET_PVT, _BILINEAR, 'hierarchical'
    ),
    Family(
        "Twins, mmseg's names",
        r'layers\.\d\.\d+\.attn\.attn\.in_proj',
        _PCPVT,
        layout='hierarchical',
    ),
    Family(
        "Twins, mmpretrain's names", r'stages\.\d\.\d+\.attn\.kv\.', _PCPVT, layout='hierarchical'
    ),
    Family(
        "PVT, its authors' names",
        r'block[1-4]\.\d+\.attn\.',
        _AUTHORS_PVT,
        _BILINEAR,
        'hierarchical',
    ),
    Family(_TWINS, r'blocks\.\d\.\d+\.attn\.kv\.', layout='hierarchical'),
    Family(
        "SAM, transformers' or mmpretrain's names",
        r'layers\.\d+\.attn\.rel_pos_[hw]$',
        _SAM,
        _BICUBIC,
        attends_to_padding=True,
    ),
    Family(
        "ViTDet or SAM, their authors' or timm's names",
        r'blocks\.\d+\.attn\.rel_pos_[hw]$',
        _SAM,
        _BICUBIC,
        attends_to_padding=True,
    ),
    Family(
        "ViTDet, transformers' names",
        r'encoder\.layer\.\d+\.attention\.qkv\.',
        _TRANSFORMERS_VITDET,
        _BICUBIC,
        attends_to_padding=True,
    ),
    Family(
        "ViT or DeiT, mmpretrain's names", r'layers\.\d+\.attn\.qkv\.', _OPENMMLAB_VIT, _BICUBIC
    ),
    Family("ViT, mmseg's names", r'layers\.\d+\.attn\.attn\.in_proj', _OPENMMLAB_VIT, _BICUBIC),
    # Not recognised by its blocks, because in a whole CLIP such names without prefix
    # belong to the text tower.
    Family("CLIP's ViT, OpenAI's or open_clip's names", r'class_embedding$', _CLIP),
    Family(
        "ViT with registers, transformers' names",
        r'embeddings\.register_tokens$',
        _TRANSFORMERS,
        _SMOOTH_BICUBIC,
    ),
    Family("ViT, transformers' names", r'embeddings\.patch_embeddings?\.', _TRANSFORMERS, _BICUBIC),
    Family(
        "ViT, DeiT or CPVT, timm's or this package's names",
        r'blocks\.\d+\.attn\.qkv\.',
        _TIMM_VIT,
    ),
)

# Models with ViT-like keys that no backbone here supports. Pattern of a key, and the reason; the
# error has the first that matches.
_UNSUPPORTED = (
    (r'pos_embed_window$', 'SAM 2 (Hiera), whose blocks pool their windows'),
    (r'blocks\.\d+\.proj\.weight$', 'Hiera, whose blocks pool their tokens'),
    (r'encoder\.stages\.\d+\.layers\.\d+\.attn\.qkv', 'Hiera, whose blocks pool their tokens'),
    (r'embeds\.proj\.weight$', 'NaFlexViT, which takes sequences of patches'),
    (
        r'(layers|stages)\.\d+\.blocks\.\d+\.(attn|attention)\..*'
        r'(relative_position|logit_scale|cpb_mlp|continuous_position)',
        'Swin, which shifts its windows',
    ),
    (r'stages\.\d+\.layers\.\d+\.pwconv1\.weight$', 'ConvNeXt, a network of convolutions'),
    (
        r'(attn\.rel_pos|shared_rel_pos)\.',
        'a vit_relpos of timm, whose relative positions come from an MLP or a shared table',
    ),
    (r'(preprocessor\.patchifier|embeddings\.rms_norm)\..*weight$', 'AIMv2'),
)
# Public weights with a plain ViT's keys but another computation, which nothing in the file shows.
# Patterns match the start of timm's names, because a user's own file name may contain `rpn`.
_KNOWN_TO_DIFFER = (
    (r'vit_[a-z]+_patch\d+_rpn_', 'its blocks normalise after attention and MLP, CPVT before them'),
    (r'eva02_enormous', 'its blocks normalise after attention and MLP, CPVT before them'),
)


def known_to_differ(checkpoint: Any) -> str:
    """Return why public weights of this name give other outputs in any model here, or ``''``."""
    name = str(checkpoint).replace('\\', '/').rpartition('/')[2]
    for pattern, reason in _KNOWN_TO_DIFFER:
        if re.match(pattern, name):
            return reason
    return ''


# Prefixes of a backbone's keys in wrappers and whole models.
PREFIXES = ('module.', 'backbone.', 'model.', 'visual.trunk.', 'visual.')
# Keys under which training scripts store the weights.
CONTAINERS = ('state_dict', 'model', 'model_state_dict', 'module')
EMA_CONTAINERS = ('model_ema', 'ema_state_dict', 'state_dict_ema')


def stored_weights(checkpoint: Any, *, ema: bool = False) -> Mapping[str, Any]:
    """Return the weights inside the wrappers of a training script.

    Averaged weights are taken if ``ema``, or if there are no others.

    Raises:
        CheckpointError: There are no weights.
    """
    if not isinstance(checkpoint, Mapping):
        raise CheckpointError(
            f'checkpoint must be a dict of weights, got a {type(checkpoint).__name__}'
        )
    stored, averaged = _container(checkpoint, CONTAINERS), _container(checkpoint, EMA_CONTAINERS)
    if ema:
        # mmengine's EMAHook swaps the two on saving: `state_dict` has the average.
        if stored == 'state_dict' and 'steps' in (checkpoint.get('ema_state_dict') or ()):
            return stored_weights(checkpoint['state_dict'])
        if not averaged:
            raise CheckpointError(
                f'ema=True: the checkpoint has none of {", ".join(EMA_CONTAINERS)}; it has'
                f' {shorten([*map(str, checkpoint)])}'
            )
        return stored_weights(checkpoint[averaged])
    if stored:  # before tensors, because a script may store further tensors beside the weights
        return stored_weights(checkpoint[stored])
    if any(isinstance(value, Tensor) for value in checkpoint.values()):
        return checkpoint
    # Models of one training, such as `teacher` and `student` of DINO: `recognise` picks one.
    models = {
        f'{name}.{key}': value
        for name, part in checkpoint.items()
        if isinstance(part, Mapping) and name not in EMA_CONTAINERS
        for key, value in part.items()
        if isinstance(value, Tensor)
    }
    if models:
        return models
    if averaged:
        print_log(f'averaged weights ({averaged!r}) are taken: there are no others', 'current')
        return stored_weights(checkpoint[averaged])
    keys = shorten([*map(str, checkpoint)])
    fault = f'has no weights: no tensors, and none of {", ".join(CONTAINERS)}; it has {keys}'
    raise CheckpointError(
        f'the checkpoint {fault if checkpoint else "is empty: a dict without a key"}'
    )


def _container(checkpoint: Mapping[str, Any], keys: Iterable[str]) -> str:
    """Return the first of these keys that holds a dict; ``''`` without one."""
    for key in keys:
        if isinstance(checkpoint.get(key), Mapping):
            return key
    return ''


@dataclass(frozen=True)
class Recognised:
    """The weights of a backbone in a checkpoint; ``prefix`` and ``dropped`` go to the report."""

    family: Family
    weights: Found
    prefix: str
    dropped: dict[str, Reason]


def recognise(checkpoint: Any, *, prefix: str | None = None, ema: bool = False) -> Recognised:
    """Return the family and the weights of a backbone.

    Args:
        checkpoint: A state dict, or a whole checkpoint that holds one.
        prefix: See :func:`convert_state_dict`.
        ema: See :func:`convert_state_dict`.

    Raises:
        CheckpointError: There are no weights, or ``prefix`` or the keys are unknown.
    """
    weights = stored_weights(checkpoint, ema=ema)
    tensors = {str(key): value for key, value in weights.items() if isinstance(value, Tensor)}
    # torch.compile wraps a whole model, or any module in it.
    found = {key.replace('_orig_mod.', ''): (key, value) for key, value in tensors.items()}
    removed = ''
    if prefix is not None:
        removed = f'{prefix.rstrip(".")}.'
        if not any(key.startswith(removed) for key in found):
            first = sorted({key.split('.')[0] + '.' for key in found if '.' in key})
            raise CheckpointError(
                f'prefix={removed!r}: no key starts with it; the keys start with {shorten(first)}'
            )
    inner = _under(removed, found)
    if reason := _unsupported(inner):
        raise CheckpointError(f'the checkpoint is of {reason}: no backbone here computes it')
    while (family := _family(inner)) is None:
        wrapper = next((p for p in PREFIXES if any(key.startswith(p) for key in inner)), None)
        removed += wrapper or _only_prefix(inner, removed)
        inner = _under(removed, found)
    dropped = {str(key): Reason.NO_TENSOR for key in weights if str(key) not in tensors}
    used = {old for old, _ in inner.values()}
    dropped |= {old: Reason.NOT_UNDER_PREFIX for old, _ in found.values() if old not in used}
    return Recognised(family, inner, removed, dropped)


def _unsupported(found: Found) -> str:
    """Return the model of the weights if no backbone here supports it; otherwise ``''``."""
    for pattern, reason in _UNSUPPORTED:
        if any(re.search(rf'(^|\.){pattern}', key) for key in found):
            return reason
    for key, (_, value) in found.items():
        if value.dim() == 5 and 'patch_embed' in key:
            return 'V-JEPA 2, VideoMAE or another model of videos'
        if value.dim() == 2 and key.endswith('embeddings.patch_embedding.weight'):
            return 'SigLIP 2 NaFlex, which takes sequences of patches'
        if key.endswith('patch_embed.norm.weight') and f'{key[:-6]}bias' not in found:
            return 'AIMv2 or another model with RMSNorm'
    return ''


def _family(found: Found) -> Family | None:
    """Return the first family that one of the keys belongs to."""
    for family in SOURCES:
        if any(re.match(family.signature, key) for key in found):
            return family
    return None


def _under(prefix: str, found: Found) -> Found:
    """Return the weights whose keys start with a prefix, without the prefix."""
    return {key[len(prefix) :]: pair for key, pair in found.items() if key.startswith(prefix)}


def _only_prefix(found: Found, removed: str) -> str:
    """Return the only prefix under which the keys belong to a family.

    Raises:
        CheckpointError: There is no such prefix, or more than one.
    """
    prefixes: dict[str, None] = {}
    for key in found:
        parts = key.split('.')
        for start in range(1, len(parts)):
            rest = '.'.join(parts[start:])
            if any(re.match(family.signature, rest) for family in SOURCES):
                prefixes['.'.join(parts[:start])] = None
                break
    # Some names under a prefix may look like those of another family.
    prefixes = {
        inner: None
        for inner in prefixes
        if not any(inner.startswith(f'{outer}.') for outer in prefixes)
    }
    # Prefixes that differ only in numbers are parts of one model, like the stages of Swin.
    if len({re.sub(r'\d+', '0', prefix) for prefix in prefixes}) < min(len(prefixes), 2):
        prefixes = {}
    if len(prefixes) > 1:
        choices = ', '.join(repr(removed + prefix) for prefix in prefixes)
        raise CheckpointError(
            f'several parts of the checkpoint are backbones; choose one by prefix=: {choices}'
        )
    if not prefixes:
        known = '; '.join(family.name for family in SOURCES)
        keys = f'its keys are {shorten(list(found))}'
        raise CheckpointError(
            f'the checkpoint is none of those recognised: {keys}; recognised are {known}'
        )
    return f'{next(iter(prefixes))}.'
