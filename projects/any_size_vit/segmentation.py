"""A dense task: a linear segmentor on the frozen tokens of each student, trained at one size and
tested at others.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from positional_encoding.runs import origin, write_json
from torch import Tensor, nn

from cpvt_backbones import CPVT

from .images import decode, files_in
from .stored import stored_array
from .study import AdaptRun, Study

SIZE = (240, 320)
"""Height and width that the linear layer is trained at, px; size 1 of the tests."""
FACTORS = (0.5, 1.0, 1.5, 2.0)
TRAIN_STEP, TEST_STEP = 2, 3
"""Every second training image and every third test image."""
CLASSES, IGNORED, BLOCK = 11, 11, 6
"""Classes, the label of void, and the consecutive test images that are counted together."""
STEPS, BATCH = 400, 16
FILE = 'segmentation.json'


def segment(
    study: Study, runs: Sequence[AdaptRun], data: Path, size: tuple[int, int] = SIZE
) -> None:
    """Write ``segmentation.json`` into the folder of each finished run: a row for each factor of
    the size.

    Args:
        study: Of the runs.
        runs: Those that are not finished are left out.
        data: CamVid: ``images/{train,test}/*.jpg`` and ``labels/{train,test}/*.png`` of the same
            names.
        size: Height and width that the linear layer is trained at, px.
    """
    (pixels, labels), (test_pixels, test_labels) = (
        read(data, 'train', TRAIN_STEP),
        read(data, 'test', TEST_STEP),
    )
    for run in runs:
        folder = study.folder / run.name
        file = folder / FILE
        rows = json.loads(file.read_text()) if file.is_file() else []
        if study.record(run) is None or len(rows) == len(FACTORS):
            continue
        model = study.trained(run)
        shape = (len(pixels), *grid_of(size, model), model.embed_dims)

        def compute(start: int, end: int, model: CPVT = model) -> Tensor:
            return maps(study, model, pixels[start:end], size)

        tokens = stored_array(folder / 'segmentation_tokens.npy', shape, compute, chunk=4)
        head = fit(torch.from_numpy(np.array(tokens)), labels, size, model.out_strides[0], run.seed)
        for factor in FACTORS[len(rows) :]:
            height, width = (round(factor * side) for side in size)
            counts = []
            for image, label in zip(test_pixels.split(1), test_labels.split(1), strict=True):
                with torch.inference_mode():
                    logits = head(maps(study, model, image, (height, width)).float())
                found = to_pixels(logits, (height, width), model.out_strides[0])
                found = F.interpolate(found, label.shape[-2:], mode='bilinear').argmax(dim=1)
                counts.append(overlaps(found, label))
            row = run._asdict() | dict(precision=study.plan['precision'], **origin())
            row |= dict(size=factor, height=height, width=width)
            rows.append(row | dict(images=len(counts), counts=pack(counts)))
            write_json(file, rows)
            print(
                f'{run.name}: {factor:g} x: mIoU {miou(unpack(rows[-1]["counts"])):.1f} of'
                f' {len(counts)}',
                flush=True,
            )


def read_segmentation(folder: Path) -> list[dict[str, Any]]:
    """Rows of all runs of a study's folder."""
    return [
        row for file in sorted(folder.glob(f'*/{FILE}')) for row in json.loads(file.read_text())
    ]


def read(data: Path, part: str, step: int) -> tuple[Tensor, Tensor]:
    """Images, uint8 (N, 3, H, W), and labels, uint8 (N, H, W), of every ``step``-th file.

    Of one size.
    """
    files = files_in(data / 'images' / part)[::step]
    labels = []
    for file in files:
        with Image.open(data / 'labels' / part / f'{file.stem}.png') as opened:
            labels.append(np.array(opened))
    height, width = labels[0].shape
    return decode(files, (height, width)), torch.from_numpy(np.stack(labels))


def grid_of(size: tuple[int, int], model: CPVT) -> tuple[int, int]:
    """Rows and columns of patches."""
    height, width = (-(-side // model.out_strides[0]) for side in size)
    return height, width


def maps(study: Study, model: CPVT, pixels: Tensor, size: tuple[int, int]) -> Tensor:
    """Patch tokens (B, h, w, C) of images at a size."""
    return study.run_model(model, pixels, size)[0][:, 1:].unflatten(1, grid_of(size, model))


def fit(
    tokens: Tensor, labels: Tensor, size: tuple[int, int], stride: int, seed: int
) -> Callable[[Tensor], Tensor]:
    """A linear layer on standardised tokens (N, h, w, C), trained with cross-entropy at each pixel
    of ``size``.
    """
    std, mean = torch.std_mean(tokens.float(), dim=(0, 1, 2))
    targets = F.interpolate(labels[:, None].float(), size, mode='nearest')[:, 0].long()
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        head = nn.Linear(tokens.shape[-1], CLASSES)
        optimizer = torch.optim.AdamW(head.parameters(), lr=1e-3)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
        for _ in range(STEPS):
            chosen = torch.randint(len(tokens), (min(BATCH, len(tokens)),))
            logits = head((tokens[chosen].float() - mean) / std)
            loss = F.cross_entropy(
                to_pixels(logits, size, stride), targets[chosen], ignore_index=IGNORED
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    return lambda found: head((found - mean) / std)


def to_pixels(logits: Tensor, size: tuple[int, int], stride: int) -> Tensor:
    """Logits of patches (B, h, w, K) as maps (B, K, H, W) of the image, without the padding of its
    last patches.
    """
    whole = F.interpolate(logits.permute(0, 3, 1, 2), scale_factor=stride, mode='bilinear')
    return whole[:, :, : size[0], : size[1]]


def overlaps(found: Tensor, labels: Tensor) -> np.ndarray:
    """Pixels in the intersection and in the union of each class, (2, K); void is left out."""
    known = labels < IGNORED
    one, other = (F.one_hot(x[known].long(), CLASSES).sum(dim=0) for x in (found, labels))
    both = F.one_hot(labels[known & (found == labels)].long(), CLASSES).sum(dim=0)
    return torch.stack([both, one + other - both]).numpy()


def pack(counts: Sequence[np.ndarray]) -> str:
    """Sums over blocks of consecutive images as text."""
    blocks = [
        np.sum(counts[start : start + BLOCK], axis=0) for start in range(0, len(counts), BLOCK)
    ]
    return ' '.join(map(str, np.stack(blocks).ravel()))


def unpack(text: str) -> np.ndarray:
    """(blocks, 2, K) of :func:`pack`."""
    return np.array(text.split(), dtype=np.int64).reshape(-1, 2, CLASSES)


def miou(blocks: np.ndarray) -> float:
    """Mean over the classes that occur, percent."""
    both, either = blocks.sum(axis=0)
    return float(100 * (both[either > 0] / either[either > 0]).mean())


def resampled(
    seeds: Sequence[np.ndarray], other: np.ndarray, draws: int = 2000
) -> tuple[float, float]:
    """95 % interval of the mean mIoU of seeds minus another one on the same images: blocks drawn
    with replacement.
    """
    rng = np.random.default_rng(0)
    chosen = rng.integers(len(other), size=(draws, len(other)))
    gaps = [np.mean([miou(one[index]) for one in seeds]) - miou(other[index]) for index in chosen]
    low, high = np.percentile(gaps, [2.5, 97.5])
    return float(low), float(high)
