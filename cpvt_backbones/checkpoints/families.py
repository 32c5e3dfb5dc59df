"""Whose checkpoint it is, told by its keys, and how its keys become timm's, which are this package's own."""

import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

Rule = tuple[str, str | Callable[[re.Match[str]], str]]


@dataclass(frozen=True)
class Source:
    """One kind of checkpoint.

    Args:
        name: What a report calls it.
        family: ``'column'`` (ViT, CPVT) or ``'pyramid'`` (PVT, Twins-PCPVT).
        signature: A regular expression that matches the start of some key of each such checkpoint, and of no other.
        rules: Regular expressions and what replaces them, applied one after the other to each key.
    """

    name: str
    family: str
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


SOURCES: tuple[Source, ...] = (
    Source(
        name="PVT, mmdet's names",
        family='pyramid',
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
    Source(
        name="Twins-PCPVT, mmseg's names",
        family='pyramid',
        signature=r'layers\.\d\.\d+\.attn\.attn\.in_proj',
        rules=((r'^layers\.(\d)\.(\d+)\.', r'blocks.\1.\2.'), *_TORCH_ATTENTION, *_PCPVT),
    ),
    Source(
        name="Twins-PCPVT, mmpretrain's names",
        family='pyramid',
        signature=r'stages\.\d\.\d+\.attn\.kv\.',
        rules=((r'^stages\.(\d)\.(\d+)\.', r'blocks.\1.\2.'), *_PCPVT),
    ),
    Source(
        name="PVT, its authors' names",
        family='pyramid',
        signature=r'block[1-4]\.\d+\.attn\.',
        rules=(
            (r'^patch_embed([1-4])\.', _from_one('patch_embeds.{}.')),
            (r'^pos_embed([1-4])$', _from_one('pos_embed.{}')),
            (r'^block([1-4])\.', _from_one('blocks.{}.')),
            (r'^norm([1-4])\.', _from_one('norm_after_stage{}.')),
        ),
    ),
    Source(
        name="Twins-PCPVT or PyramidCPVT, the authors', timm's or this package's names",
        family='pyramid',
        signature=r'blocks\.\d\.\d+\.attn\.kv\.',
    ),
    Source(
        name="ViT or DeiT, mmpretrain's names",
        family='column',
        signature=r'layers\.\d+\.attn\.qkv\.',
        rules=_OPENMMLAB_VIT,
    ),
    Source(
        name="ViT, mmseg's names",
        family='column',
        signature=r'layers\.\d+\.attn\.attn\.in_proj',
        rules=_OPENMMLAB_VIT,
    ),
    Source(
        name="CLIP's ViT, OpenAI's or open_clip's names",
        family='column',
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
    Source(
        name="ViT, DeiT or CPVT, timm's or this package's names",
        family='column',
        signature=r'blocks\.\d+\.attn\.qkv\.',
        rules=((r'^(blocks\.\d+)\.gamma_([12])$', r'\1.ls\2.gamma'),),
    ),
)

# What wrappers and whole models put in front of a backbone's keys.
PREFIXES = ('module.', 'backbone.', 'model.', 'visual.trunk.', 'visual.')


def recognise(keys: Collection[str]) -> Source | None:
    """The source of these keys, if it is known."""
    return next((source for source in SOURCES if source.recognises(keys)), None)
