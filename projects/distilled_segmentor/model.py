"""Segmentor whose backbone also learns the tokens that a larger model gives to the same crops."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from mmcv.transforms import BaseTransform
from mmseg.models import EncoderDecoder
from mmseg.registry import MODELS, TRANSFORMS
from torch import Tensor, nn

from cpvt_backbones.layers.checks import check, check_int, check_positive, is_int

STRIDE = 16
"""Of the student's map and of the teacher's tokens, px."""


@TRANSFORMS.register_module()
class NoLabels(BaseTransform):
    """Give an image a label map that is void everywhere."""

    def __init__(self, void: int) -> None:
        self.void = void

    def transform(self, results: dict[str, Any]) -> dict[str, Any]:
        results['gt_seg_map'] = np.full(results['img'].shape[:2], self.void, np.uint8)
        results['seg_fields'].append('gt_seg_map')
        return results


@TRANSFORMS.register_module()
class Places(BaseTransform):
    """Give each pixel its place in the image, (x, y) from -1 to 1: what moves labels moves the places, too."""

    def transform(self, results: dict[str, Any]) -> dict[str, Any]:
        y, x = ((np.arange(side, dtype=np.float32) + 0.5) * 2 / side - 1 for side in results['img'].shape[:2])
        results['places'] = np.stack(np.meshgrid(x, y), axis=-1)
        results['seg_fields'].append('places')
        return results


@TRANSFORMS.register_module()
class TeacherTokens(BaseTransform):
    """Read the teacher's tokens at the patches of the crop: ``teacher_tokens``, fp32 (C, h, w).

    Args:
        folder: Written by ``tokens.py``.

    Raises:
        FileNotFoundError: There is no such folder, or it is not finished.
        ValueError: The image has no tokens.
    """

    def __init__(self, folder: str) -> None:
        self.folder, file = folder, Path(folder) / 'names.txt'
        if not file.is_file():
            raise FileNotFoundError(f'folder: there is no {str(file)!r}; write it with tokens.py')
        self.rows = {name: row for row, name in enumerate(file.read_text().splitlines())}
        self.tokens = np.load(file.with_name('tokens.npy'), mmap_mode='r')

    def transform(self, results: dict[str, Any]) -> dict[str, Any]:
        row = self.rows.get(Path(results['img_path']).stem)
        if row is None:
            raise ValueError(
                f'folder: {self.folder!r} has no tokens of {results["img_path"]!r}; write it with tokens.py'
            )
        tokens = torch.from_numpy(self.tokens[row].astype(np.float32))
        # The crop's last patches may be cut; half a patch is inside.
        places = torch.from_numpy(results['places'][STRIDE // 2 :: STRIDE, STRIDE // 2 :: STRIDE].copy())
        found = F.grid_sample(tokens.permute(2, 0, 1)[None], places[None], padding_mode='border', align_corners=False)
        results['teacher_tokens'] = found[0]
        return results


@MODELS.register_module()
class TokenDistillation(EncoderDecoder):
    """A segmentor with one more loss: the cosine distance of a linear map of the backbone's tokens from the teacher's.

    The teacher's tokens are standardised over the batch: a few channels are a hundred times the others.

    Args:
        index: Which of the backbone's maps is of stride 16.
        teacher_dims: Width of the teacher's tokens.
        weight: Of the loss.
        options: Arguments of mmseg's ``EncoderDecoder``.

    Raises:
        ValueError: The backbone's map ``index`` is not of stride 16.
    """

    def __init__(self, *, index: int, teacher_dims: int, weight: float = 1.0, **options: Any) -> None:
        super().__init__(**options)
        strides = list(self.backbone.out_strides)
        check(
            f'the index of {STRIDE} in {strides}', lambda v: is_int(v) and strides[v : v + 1] == [STRIDE], index=index
        )
        check_int(teacher_dims=teacher_dims)
        check_positive(weight=weight)
        self.index, self.weight = index, weight
        self.to_teacher = nn.Conv2d(self.backbone.out_channels[index], teacher_dims, 1)
        self.standardise = nn.BatchNorm1d(teacher_dims, affine=False, track_running_stats=False)

    def loss(self, inputs: Tensor, data_samples: list[Any]) -> dict[str, Tensor]:
        maps = self.backbone(inputs)
        features = self.neck(maps) if self.with_neck else maps
        losses = self._decode_head_forward_train(features, data_samples)
        if self.with_auxiliary_head:
            losses |= self._auxiliary_head_forward_train(features, data_samples)
        found, wanted = [], []
        for student, sample in zip(self.to_teacher(maps[self.index]), data_samples, strict=True):
            tokens = sample.teacher_tokens
            found.append(student[:, : tokens.shape[1], : tokens.shape[2]].flatten(1))  # the rest is padding
            wanted.append(tokens.flatten(1))
        targets = self.standardise(torch.cat(wanted, dim=1).T.to(inputs.device))
        cosines = F.cosine_similarity(torch.cat(found, dim=1).T.float(), targets)
        return losses | dict(loss_tokens=self.weight * (1 - cosines.mean()))
