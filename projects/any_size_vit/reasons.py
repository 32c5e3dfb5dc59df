"""Why encodings differ at sizes that training has not seen: what tokens know of their place, where
attention looks.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from positional_encoding.runs import origin, write_json
from torch import Tensor

from cpvt_backbones import CPVT
from cpvt_backbones.analysis.attention_maps import attention_layers, attention_weights

from .images import prepare
from .study import AdaptRun, Study

SIZES = (64, 96, 160, 224, 320, 448)
READ, LOOKED_AT = 20, 4
"""Images whose tokens are read, and those whose attention is measured, at each size."""
FILE = 'reasons.json'


def explain(study: Study, runs: Sequence[AdaptRun], sizes: Sequence[int] = SIZES) -> None:
    """Write ``reasons.json`` into the folder of each finished run that has none: a row for each
    size.
    """
    (gallery, _), (queries, _) = study.test_images()
    depth = study.source.build(None).depth
    for run in runs:
        file = study.folder / run.name / FILE
        if file.is_file() or study.record(run) is None:
            continue
        model = study.trained(run, out_indices=(depth // 2 - 1, depth - 1))
        probe = fit_places(patch_tokens(study, model, some(gallery, 2 * READ), gallery.shape[-1]))
        rows = []
        for side in sizes:
            place = read_places(probe, patch_tokens(study, model, some(queries, READ), side))
            looked = look(study, model, some(queries, LOOKED_AT), side)
            rows.append(dict(size=side, place=round(place, 4)) | looked)
            print(f'{run.name}: {rows[-1]}', flush=True)
        made = dict(precision=study.plan['precision'], **origin())
        write_json(file, [dict(run._asdict(), **made, **row) for row in rows])


def read_reasons(folder: Path) -> list[dict[str, Any]]:
    """Rows of all runs of a study's folder."""
    return [
        row for file in sorted(folder.glob(f'*/{FILE}')) for row in json.loads(file.read_text())
    ]


def some(pixels: Tensor, count: int) -> Tensor:
    """About ``count`` images, at even distances."""
    return pixels[:: max(len(pixels) // count, 1)]


def patch_tokens(study: Study, model: CPVT, pixels: Tensor, side: int) -> np.ndarray:
    """Patch tokens of the middle block, (B, h, h, C)."""
    found = torch.cat(
        [study.run_model(model, pixels[i : i + 1], side)[0] for i in range(len(pixels))]
    )
    grid = -(-side // model.out_strides[0])
    return found[:, 1:].unflatten(1, (grid, grid)).float().numpy()


def places(tokens: np.ndarray) -> np.ndarray:
    """Row and column of each token's centre as shares of the image, (B * h * w, 2)."""
    batch, height, width, _ = tokens.shape
    centres = np.meshgrid(
        (np.arange(height) + 0.5) / height, (np.arange(width) + 0.5) / width, indexing='ij'
    )
    return np.tile(np.stack(centres, axis=-1).reshape(-1, 2), (batch, 1))


def fit_places(tokens: np.ndarray) -> Any:
    """A linear probe (ridge regression on standardised features) from a token to its place."""
    from sklearn.linear_model import Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(StandardScaler(), Ridge(alpha=100.0)).fit(
        tokens.reshape(-1, tokens.shape[-1]), places(tokens)
    )


def read_places(probe: Any, tokens: np.ndarray) -> float:
    """Share of the variance of rows and columns that the probe explains (R2).

    Below 0 it is worse than the centre.
    """
    return float(probe.score(tokens.reshape(-1, tokens.shape[-1]), places(tokens)))


def look(study: Study, model: CPVT, pixels: Tensor, side: int) -> dict[str, float]:
    """Mean distance from a patch to the patches it attends to (1: the image's side), and entropy
    (1: all alike).

    Means over images, heads, queries, and every third layer; the attention to the class token is
    left out.
    """
    images = prepare(pixels, side, study.source.mean, study.source.std)
    distances, entropies = [], []
    for layer in list(attention_layers(model))[2::3] or list(attention_layers(model)):
        with torch.autocast('cpu', study.precision, enabled=study.precision != torch.float32):
            found = attention_weights(model, images, layer)
        weights = found.weights[:, :, found.num_prefix :, found.num_prefix :].float()
        weights /= weights.sum(dim=-1, keepdim=True)
        height, width = found.grid
        cells = torch.cartesian_prod(torch.arange(height) / height, torch.arange(width) / width)
        distances.append((weights * torch.cdist(cells, cells)).sum(dim=-1).mean().item())
        logs = torch.special.entr(weights).sum(dim=-1).mean().item()
        entropies.append(logs / float(np.log(height * width)))
    return dict(
        distance=round(float(np.mean(distances)), 4), entropy=round(float(np.mean(entropies)), 4)
    )
