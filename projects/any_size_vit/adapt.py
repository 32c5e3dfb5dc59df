"""Train a student to give the tokens of its teacher at other image sizes."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from cpvt_backbones import CPVT
from cpvt_backbones.checkpoints import atomic_write, read_checkpoint

from .images import prepare
from .student import Source

SAVE_EVERY = 90.0
"""CPU seconds between checkpoints, at most what an interruption loses; on a busy machine
they are rarer.
"""


@dataclass(frozen=True)
class Recipe:
    """A training.

    Args:
        sizes: Sides of the images in px; one step after the other takes the next.
        steps: Number of optimizer steps.
        batch_size: Images in a step.
        rate: Highest learning rate of pretrained weights; it rises over 5 % of the steps, and falls
            to zero linearly.
        position_rate: The same, of PEGs.
        seed: Of the order of the images.
    """

    sizes: tuple[int, ...] = (64, 96, 128, 224)
    steps: int = 300
    batch_size: int = 8
    rate: float = 5e-5
    position_rate: float = 2e-3
    seed: int = 0

    def factor(self, step: int) -> float:
        """Learning rate of a step, relative to the highest."""
        warmup = max(self.steps // 20, 1)
        return min((step + 1) / warmup, (self.steps - step) / max(self.steps - warmup, 1))

    def batch(self, step: int, count: int) -> list[int]:
        """Images of a step, of ``count``; each is seen once before any is seen again."""
        size = min(self.batch_size, count)
        epoch, turn = divmod(step, count // size)
        order = torch.randperm(
            count, generator=torch.Generator().manual_seed(self.seed * 100_003 + epoch)
        )
        return order[turn * size : (turn + 1) * size].tolist()


def resize_tokens(tokens: Tensor, grid: tuple[int, int]) -> Tensor:
    """Class token and a square grid of tokens (B, 1 + N, C) to (B, 1 + h * w, C).

    The low-pass filter is on.
    """
    side = round((tokens.shape[1] - 1) ** 0.5)
    if (side, side) == grid:
        return tokens
    patches = tokens[:, 1:].transpose(1, 2).unflatten(2, (side, side))
    patches = F.interpolate(patches, size=grid, mode='bilinear', antialias=True)
    return torch.cat((tokens[:, :1], patches.flatten(2).transpose(1, 2)), dim=1)


def distance(tokens: Tensor, targets: Tensor) -> Tensor:
    """1 - cosine, mean over the class tokens and over the patch tokens, half each."""
    cosines = F.cosine_similarity(tokens.float(), targets.float(), dim=-1)
    return 1 - (cosines[:, 0].mean() + cosines[:, 1:].mean()) / 2


def adapt(
    student: CPVT,
    source: Source,
    pixels: Tensor,
    targets: np.ndarray,
    recipe: Recipe,
    checkpoint: Path,
    *,
    precision: torch.dtype = torch.float32,
    note: Callable[[str], None] = print,
) -> list[float]:
    """Train ``student`` in place; continue from ``checkpoint`` if it is there.

    Args:
        student: From ``Source.build``; every parameter is trained.
        source: The pretrained model.
        pixels: uint8 (N, 3, S, S).
        targets: The teacher's tokens, (N, 1 + n, C).
        recipe: Length, sizes, rates and seed.
        checkpoint: Written every 90 seconds of computing and at the end.
        precision: ``torch.bfloat16`` for autocast.
        note: Called with a line of progress after each checkpoint.

    Returns:
        Loss of every step.
    """
    positions = student.no_weight_decay() - {'cls_token', 'pos_embed.0'}
    groups: dict[bool, list[Tensor]] = {False: [], True: []}
    for name, parameter in student.named_parameters():
        groups[name in positions].append(parameter)
    rates = {False: recipe.rate, True: recipe.position_rate}
    optimizer = torch.optim.AdamW(
        [
            dict(params=values, lr=rates[new], highest=rates[new])
            for new, values in groups.items()
            if values
        ],
        weight_decay=0.0,
    )
    losses: list[float] = []
    if checkpoint.is_file():
        content = read_checkpoint(checkpoint)
        student.load_state_dict(content['state_dict'])
        optimizer.load_state_dict(content['optimizer'])
        losses = list(content['losses'])
    student.train()
    begun, saved = time.monotonic(), time.process_time()
    first = len(losses)
    for step in range(first, recipe.steps):
        chosen = recipe.batch(step, len(pixels))
        side = recipe.sizes[step % len(recipe.sizes)]
        with torch.autocast('cpu', precision, enabled=precision != torch.float32):
            (tokens,) = student(prepare(pixels[chosen], side, source.mean, source.std))
        wanted = torch.from_numpy(targets[chosen].astype(np.float32))
        grid = (-(-side // student.out_strides[0]),) * 2
        loss = distance(tokens, resize_tokens(wanted, grid))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(student.parameters(), 1.0)
        for group in optimizer.param_groups:
            group['lr'] = group['highest'] * recipe.factor(step)
        optimizer.step()
        losses.append(loss.item())
        if step + 1 == recipe.steps or time.process_time() - saved > SAVE_EVERY:
            saved = time.process_time()
            with atomic_write(checkpoint) as stream:
                torch.save(
                    dict(
                        state_dict=student.state_dict(),
                        optimizer=optimizer.state_dict(),
                        losses=losses,
                    ),
                    stream,
                )
            left = (time.monotonic() - begun) / (step + 1 - first) * (recipe.steps - step - 1) / 60
            recent = np.mean(losses[-20:])
            note(f'step {step + 1} of {recipe.steps}, loss {recent:.4f}, about {left:.0f} min left')
    student.eval()
    return losses
