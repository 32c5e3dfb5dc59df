"""EoMT by its formula, with the names of its authors and of transformers.

Written from the paper and from the names of the published files, as an independent model: one
square size, the queries joined by hand, attention as products of matrices.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

DIM, DEPTH, HEADS, SIDE, PATCH, REGISTERS = 24, 4, 2, 64, 16, 4


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.proj = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        batch, count, _ = x.shape
        q, k, v = self.qkv(x).view(batch, count, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        logits = q @ k.transpose(2, 3) / math.sqrt(DIM // HEADS)
        if mask is not None:
            logits = logits.masked_fill(~mask[:, None], -math.inf)
        return self.proj((logits.softmax(3) @ v).transpose(1, 2).reshape(batch, count, DIM))


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(DIM))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.attn, self.ls1 = nn.LayerNorm(DIM, eps=1e-6), Attention(), Scale()
        self.norm2, self.ls2 = nn.LayerNorm(DIM, eps=1e-6), Scale()
        self.mlp = nn.ModuleDict(dict(fc1=nn.Linear(DIM, 2 * DIM), fc2=nn.Linear(2 * DIM, DIM)))

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        x = x + self.ls1.gamma * self.attn(self.norm1(x), mask)
        return x + self.ls2.gamma * self.mlp['fc2'](F.gelu(self.mlp['fc1'](self.norm2(x))))


class Upscale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.ConvTranspose2d(DIM, DIM, 2, 2)
        self.conv2 = nn.Conv2d(DIM, DIM, 3, padding=1, groups=DIM, bias=False)
        self.norm = nn.LayerNorm(DIM, eps=1e-6)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv2(F.gelu(self.conv1(x)))
        return self.norm(x.movedim(1, 3)).movedim(3, 1)


class AuthorsEoMT(nn.Module):
    """EoMT with the names of its authors. Images are in [0, 1]."""

    def __init__(self, classes: int, queries: int = 6, blocks: int = 2) -> None:
        super().__init__()
        side = SIDE // PATCH
        backbone: dict[str, nn.Module] = {}
        backbone['patch_embed'] = nn.ModuleDict(dict(proj=nn.Conv2d(3, DIM, PATCH, PATCH)))
        backbone['blocks'] = nn.ModuleList(Block() for _ in range(DEPTH))
        backbone['norm'] = nn.LayerNorm(DIM, eps=1e-6)
        trunk = nn.ModuleDict(backbone)
        trunk.register_parameter('cls_token', nn.Parameter(torch.zeros(1, 1, DIM)))
        trunk.register_parameter('reg_token', nn.Parameter(torch.zeros(1, REGISTERS, DIM)))
        trunk.register_parameter('pos_embed', nn.Parameter(torch.zeros(1, side**2, DIM)))
        self.encoder = nn.ModuleDict(dict(backbone=trunk))
        mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
        self.encoder.register_buffer('pixel_mean', torch.tensor(mean).view(1, 3, 1, 1))
        self.encoder.register_buffer('pixel_std', torch.tensor(std).view(1, 3, 1, 1))
        self.register_buffer('attn_mask_probs', torch.zeros(blocks))
        self.q = nn.Embedding(queries, DIM)
        self.class_head = nn.Linear(DIM, classes + 1)
        layers = (nn.Linear(DIM, DIM), nn.GELU(), nn.Linear(DIM, DIM), nn.GELU())
        self.mask_head = nn.Sequential(*layers, nn.Linear(DIM, DIM))
        self.upscale = nn.Sequential(Upscale(), Upscale())

    def predict(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.encoder['backbone']['norm'](x)
        count, side = len(self.q.weight), SIDE // PATCH
        queries, patches = x[:, :count], x[:, count + 1 + REGISTERS :]
        features = self.upscale(patches.transpose(1, 2).unflatten(2, (side, side)))
        masks = torch.einsum('bqc,bchw->bqhw', self.mask_head(queries), features)
        return masks, self.class_head(queries)

    def mask_of(self, x: Tensor, masks: Tensor) -> Tensor:
        count, side = len(self.q.weight), SIDE // PATCH
        mask = torch.ones(len(x), x.shape[1], x.shape[1], dtype=torch.bool)
        small = F.interpolate(masks, (side, side), mode='bilinear').flatten(2)
        mask[:, :count, count + 1 + REGISTERS :] = small > 0
        return mask

    def forward(self, images: Tensor, *, masked: bool = False) -> list[tuple[Tensor, Tensor]]:
        """Mask and class logits: before each of the last blocks if ``masked``, and at the end."""
        trunk, blocks = self.encoder['backbone'], len(self.attn_mask_probs)
        pixels = (images - self.encoder.pixel_mean) / self.encoder.pixel_std
        x = trunk['patch_embed']['proj'](pixels).flatten(2).transpose(1, 2) + trunk.pos_embed
        prefix = torch.cat((trunk.cls_token, trunk.reg_token), 1)
        x = torch.cat((prefix.expand(len(x), -1, -1), x), 1)
        predictions, mask = [], None
        for index, block in enumerate(trunk['blocks']):
            if index == DEPTH - blocks:
                x = torch.cat((self.q.weight.expand(len(x), -1, -1), x), 1)
            if masked and index >= DEPTH - blocks:
                predictions.append(self.predict(x))
                mask = self.mask_of(x, predictions[-1][0])
            x = block(x, mask)
        return [*predictions, self.predict(x)]


def on_square(image: Tensor) -> Tensor:
    """An image (3, H, W) of at most ``SIDE`` px at the top left of a black square (1, 3, S, S)."""
    square = torch.zeros(1, 3, SIDE, SIDE)
    square[0, :, : image.shape[1], : image.shape[2]] = image
    return square


def of_picture(masks: Tensor, seen: tuple[int, int], size: tuple[int, int]) -> Tensor:
    """Mask logits (Q, H, W) of a picture of ``size``, which was ``seen`` on the black square."""
    masks = F.interpolate(masks, (SIDE, SIDE), mode='bilinear')[:, :, : seen[0], : seen[1]]
    return F.interpolate(masks, size, mode='bilinear')[0]


def segments_of(masks: Tensor, classes: Tensor, things: int) -> Tensor:
    """The authors' merging of logits (Q, H, W) and (Q, K + 1): segment and class of each pixel
    (2, H, W), or -1.
    """
    scores, labels = classes.softmax(1).max(1)
    kept = (labels < classes.shape[1] - 1) & (scores > 0.8)
    scores, labels, masks = scores[kept], labels[kept], masks[kept].sigmoid()
    pixels = torch.full((2, *masks.shape[1:]), -1)
    if not len(scores):
        return pixels
    owner, first = (scores[:, None, None] * masks).argmax(0), {}
    for k, label in enumerate(labels.tolist()):
        mask = masks[k] >= 0.5
        own = (owner == k) & mask
        if not own.any() or (owner == k).sum() / mask.sum() < 0.8:
            continue
        segment = k if label < things else first.setdefault(label, k)
        pixels[:, own] = torch.tensor([segment, label])[:, None]
    return pixels


def instances_of(masks: Tensor, classes: Tensor, things: int, count: int) -> list[Any]:
    """The authors' instances of logits (Q, H, W) and (Q, K + 1): class, score and mask of the
    ``count`` best pairs of query and class, without those of regions.
    """
    scores = classes.softmax(1)[:, :-1]
    found = []
    for index in scores.flatten().topk(count).indices.tolist():
        query, label = divmod(index, scores.shape[1])
        mask = masks[query] > 0
        if label < things and mask.any():
            score = scores[query, label] * masks[query].sigmoid()[mask].mean()
            found.append((label, float(score), mask))
    return found


def published(model: AuthorsEoMT, names: str) -> dict[str, Tensor]:
    """Weights as a published file has them: ``'network.'``, ``''`` or ``'transformers'``."""
    weights = {**model.state_dict(), 'criterion.empty_weight': torch.ones(3)}
    if names != 'transformers':
        return {f'{names}{key}': value for key, value in weights.items()}
    renamed: dict[str, Tensor] = {}
    for key, value in weights.items():
        if not key.startswith('encoder.pixel'):
            renamed |= _of_transformers(key.removeprefix('encoder.backbone.'), value)
    return renamed


def _of_transformers(key: str, value: Tensor) -> dict[str, Tensor]:
    whole = {
        'cls_token': 'embeddings.cls_token',
        'reg_token': 'embeddings.register_tokens',
        'pos_embed': 'embeddings.position_embeddings.weight',
    }
    if key in whole:
        return {whole[key]: value[0] if key == 'pos_embed' else value}
    for old, new in (
        ('patch_embed.proj', 'embeddings.patch_embeddings.projection'),
        ('blocks.', 'layers.'),
        ('attn.proj', 'attention.out_proj'),
        ('ls1.gamma', 'layer_scale1.lambda1'),
        ('ls2.gamma', 'layer_scale2.lambda1'),
        ('q.weight', 'query.weight'),
        ('class_head', 'class_predictor'),
        ('mask_head.0', 'mask_head.fc1'),
        ('mask_head.2', 'mask_head.fc2'),
        ('mask_head.4', 'mask_head.fc3'),
    ):
        key = key.replace(old, new)
    if key.startswith('upscale.'):
        key = key.replace('upscale.', 'upscale_block.block.').replace('.norm.', '.layernorm2d.')
    elif key.startswith('norm.'):
        key = f'layer{key}'
    if '.attn.qkv.' in key:
        return {
            key.replace('attn.qkv', f'attention.{name}_proj'): part
            for name, part in zip('qkv', value.chunk(3), strict=True)
        }
    return {key: value}
