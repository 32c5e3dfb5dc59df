"""The kinds of checkpoint that are recognised by their keys, and the rules that rename those to this package's."""

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from .report import CheckpointError, ConversionReport, shorten

Rule = tuple[str, str | Callable[[re.Match[str]], str]]


@dataclass(frozen=True)
class Family:
    """One kind of checkpoint.

    Args:
        name: What a report calls it.
        layout: ``'column'`` (ViT, CPVT) or ``'pyramid'`` (PVT, Twins-PCPVT).
        signature: A regular expression that matches the start of some key of each such checkpoint, and of no other.
        rules: Regular expressions and what replaces them, applied one after the other to each key.
    """

    name: str
    layout: str
    signature: str
    rules: tuple[Rule, ...] = ()

    def recognises(self, keys: Iterable[str]) -> bool:
        """Whether these are the keys of such a checkpoint."""
        return any(re.match(self.signature, key) for key in keys)

    def rename(self, key: str) -> str:
        """This package's name for a key; ``attn.in_proj`` is left for the values to be split."""
        for pattern, replacement in (*self.rules, *POSITION_RULES):
            key = re.sub(pattern, replacement, key)
        return key


# A column has one table. The paper's listings call the PEG's convolution `proj` or `pos`, alone, in a Sequential or in
# a list of several PEGs.
POSITION_RULES: tuple[Rule, ...] = (
    (r'^pos_embed$', 'pos_embed.0'),
    (r'^pos_block\.(?:proj|pos)\.(?:0\.)?(weight|bias)$', r'pos_block.0.proj.0.\1'),
    (r'^pos_block\.(\d+)\.(?:proj|pos)\.(weight|bias)$', r'pos_block.\1.proj.0.\2'),
    (r'^pos_block\.(\d+)\.pos\.', r'pos_block.\1.proj.'),
)

_FFN: tuple[Rule, ...] = ((r'\.ffn\.layers\.0\.0\.', '.mlp.fc1.'), (r'\.ffn\.layers\.1\.', '.mlp.fc2.'))
_TORCH_ATTENTION: tuple[Rule, ...] = (
    (r'\.attn\.attn\.in_proj_(weight|bias)$', r'.attn.in_proj.\1'),
    (r'\.attn\.attn\.out_proj\.', '.attn.proj.'),
)
_PCPVT: tuple[Rule, ...] = (
    (r'^patch_embeds\.(\d)\.projection\.', r'patch_embeds.\1.proj.'),
    (r'^position_encodings\.(\d)\.proj\.', r'pos_block.\1.proj.0.'),
    (r'^(?:norm_after_stage|norm_list\.)3\.', 'norm.'),
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
    *_TORCH_ATTENTION,
    *_FFN,
)


def _from_one(template: str) -> Callable[[re.Match[str]], str]:
    """A replacement that counts the stage in the pattern's first group from 0 instead of 1."""
    return lambda match: template.format(int(match[1]) - 1)


SOURCES: tuple[Family, ...] = (
    Family(
        name="PVT, mmdet's names",
        layout='pyramid',
        signature=r'layers\.\d\.0\.projection\.',
        rules=(
            (r'^layers\.(\d)\.0\.projection\.', r'patch_embeds.\1.proj.'),
            (r'^layers\.(\d)\.0\.norm\.', r'patch_embeds.\1.norm.'),
            (r'^layers\.(\d)\.1\.0\.pos_embed$', r'pos_embed.\1'),
            (r'^layers\.(\d)\.1\.(\d+)\.', lambda match: f'blocks.{match[1]}.{int(match[2]) - 1}.'),
            (r'^layers\.(\d)\.2\.', r'norm_after_stage\1.'),
            (r'\.ffn\.layers\.0\.', '.mlp.fc1.'),
            (r'\.ffn\.layers\.3\.', '.mlp.fc2.'),
            *_TORCH_ATTENTION,
        ),
    ),
    Family(
        name="Twins-PCPVT, mmseg's names",
        layout='pyramid',
        signature=r'layers\.\d\.\d+\.attn\.attn\.in_proj',
        rules=((r'^layers\.(\d)\.(\d+)\.', r'blocks.\1.\2.'), *_TORCH_ATTENTION, *_PCPVT),
    ),
    Family(
        name="Twins-PCPVT, mmpretrain's names",
        layout='pyramid',
        signature=r'stages\.\d\.\d+\.attn\.kv\.',
        rules=((r'^stages\.(\d)\.(\d+)\.', r'blocks.\1.\2.'), *_PCPVT),
    ),
    Family(
        name="PVT, its authors' names",
        layout='pyramid',
        signature=r'block[1-4]\.\d+\.attn\.',
        rules=(
            (r'^patch_embed([1-4])\.', _from_one('patch_embeds.{}.')),
            (r'^pos_embed([1-4])$', _from_one('pos_embed.{}')),
            (r'^block([1-4])\.', _from_one('blocks.{}.')),
            (r'^norm([1-4])\.', _from_one('norm_after_stage{}.')),
        ),
    ),
    Family(
        name="Twins-PCPVT or PyramidCPVT, the authors', timm's or this package's names",
        layout='pyramid',
        signature=r'blocks\.\d\.\d+\.attn\.kv\.',
    ),
    Family(
        name="ViT or DeiT, mmpretrain's names",
        layout='column',
        signature=r'layers\.\d+\.attn\.qkv\.',
        rules=_OPENMMLAB_VIT,
    ),
    Family(
        name="ViT, mmseg's names",
        layout='column',
        signature=r'layers\.\d+\.attn\.attn\.in_proj',
        rules=_OPENMMLAB_VIT,
    ),
    Family(
        name="CLIP's ViT, OpenAI's or open_clip's names",
        layout='column',
        # Not its blocks, whose unprefixed names are the text tower's in a whole CLIP.
        signature=r'class_embedding$',
        rules=(
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
        ),
    ),
    Family(
        name="ViT, DeiT or CPVT, timm's or this package's names",
        layout='column',
        signature=r'blocks\.\d+\.attn\.qkv\.',
        rules=((r'^(blocks\.\d+)\.gamma_([12])$', r'\1.ls\2.gamma'),),
    ),
)

# What wrappers and whole models put in front of a backbone's keys.
PREFIXES = ('module.', 'backbone.', 'model.', 'visual.trunk.', 'visual.')
# Where training scripts keep the weights.
CONTAINERS = ('state_dict', 'model', 'model_state_dict', 'module')
EMA_CONTAINERS = ('model_ema', 'ema_state_dict', 'state_dict_ema')


def recognise(keys: Collection[str]) -> Family | None:
    """The source of these keys, if it is known."""
    return next((source for source in SOURCES if source.recognises(keys)), None)


def find_weights(checkpoint: Any, *, ema: bool) -> Mapping[str, Any]:
    """The mapping with the tensors, however deep a training script wrapped it.

    Raises:
        CheckpointError: There is none, or no averaged one where ``ema`` asks for it.
    """
    if not isinstance(checkpoint, Mapping):
        raise CheckpointError(f'checkpoint must be a dict of weights, got a {type(checkpoint).__name__}')
    averaged = [key for key in EMA_CONTAINERS if isinstance(checkpoint.get(key), Mapping)]
    if ema:
        # mmengine's EMAHook swaps the two when it saves: the average lies in state_dict.
        if isinstance(checkpoint.get('state_dict'), Mapping) and 'steps' in (checkpoint.get('ema_state_dict') or ()):
            return find_weights(checkpoint['state_dict'], ema=False)
        if not averaged:
            raise CheckpointError(
                f'ema=True: the checkpoint has none of {", ".join(EMA_CONTAINERS)}; '
                f'it has {shorten([str(key) for key in checkpoint])}'
            )
        return find_weights(checkpoint[averaged[0]], ema=False)
    # First, because a script may store a tensor or two beside them.
    for key in CONTAINERS:
        if isinstance(checkpoint.get(key), Mapping):
            return find_weights(checkpoint[key], ema=False)
    if any(isinstance(value, Tensor) for value in checkpoint.values()):
        return checkpoint
    if averaged:
        raise CheckpointError(
            f'the checkpoint holds averaged weights alone ({averaged[0]!r}): ask for them by ema=True'
        )
    if not checkpoint:
        raise CheckpointError('the checkpoint is empty: a dict without a key')
    raise CheckpointError(
        f'the checkpoint has no weights: no tensors, and none of {", ".join(CONTAINERS)}; '
        f'it has {shorten([str(key) for key in checkpoint])}'
    )


def find_backbone(
    weights: Mapping[str, Any], *, prefix: str | None, report: ConversionReport
) -> tuple[Family, dict[str, tuple[str, Tensor]]]:
    """The backbone's own keys, each with its key in the checkpoint and its tensor, and whose names they are.

    Raises:
        CheckpointError: No key starts with ``prefix``, or nobody's names are recognised.
    """
    found: dict[str, tuple[str, Tensor]] = {}
    for key, value in weights.items():
        if isinstance(value, Tensor):
            # torch.compile wraps a whole model, or any module in it.
            found[str(key).replace('_orig_mod.', '')] = (str(key), value)
        else:
            report.dropped[str(key)] = 'no tensor'
    if prefix is not None:
        prefix = prefix.rstrip('.') + '.'
        if not any(key.startswith(prefix) for key in found):
            first = sorted({key.split('.')[0] + '.' for key in found if '.' in key})
            raise CheckpointError(f'prefix={prefix!r}: no key starts with it; the keys start with {shorten(first)}')
        found = _under(prefix, found, report)
    while (source := recognise(found)) is None:
        wrapper = next((p for p in PREFIXES if any(key.startswith(p) for key in found)), None)
        if wrapper is None:
            raise CheckpointError(
                f'the checkpoint is none of those recognised: its keys are {shorten(list(found))}; recognised are '
                + '; '.join(known.name for known in SOURCES)
            )
        found = _under(wrapper, found, report)
    report.source = source.name
    return source, found


def _under(
    prefix: str, found: dict[str, tuple[str, Tensor]], report: ConversionReport
) -> dict[str, tuple[str, Tensor]]:
    report.prefix += prefix
    report.dropped |= {
        old: f"not under '{report.prefix}'" for key, (old, _) in found.items() if not key.startswith(prefix)
    }
    return {key[len(prefix) :]: pair for key, pair in found.items() if key.startswith(prefix)}
