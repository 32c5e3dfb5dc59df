"""Crops of a data set's images that are drawn once, with the features that a frozen CNN has for
them.
"""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
import torch.nn.functional as F
from mmengine.device import get_device
from mmengine.dist import get_rank, get_world_size
from mmengine.registry import DATASETS
from torch import Tensor

from cpvt_backbones.checkpoints import load_weights
from cpvt_backbones.checks import check_int
from cpvt_backbones.engine.cached_dataset import BatchRandomResizedCrop, DecodedDataset
from cpvt_backbones.weights import sha256_of

from .stored import stored_array

TEACHER = 'tf_efficientnet_lite0'
MAP, MAP_CHANNELS, POOLED_CHANNELS = 3, 112, 1280
"""Of the teacher: timm's index of the map of stride 16, its channels, and those of the
pooled features.
"""
GRID = 7
"""Rows and columns of the stored map."""
PART = 10_000
"""Images in a file of stored features; the processes share files."""


def read_teacher(checkpoint: str) -> Any:
    """The frozen EfficientNet-Lite0 that ``shipped_weights/make_teacher.py`` wrote."""
    # Building it must not advance the generator: another teacher would draw other weights of the
    # student.
    with torch.random.fork_rng():
        network = timm.create_model(TEACHER)
    load_weights(network, checkpoint, strict=True)
    return network.requires_grad_(False).eval().to(memory_format=torch.channels_last)


def resize(images: Tensor, size: Any) -> Tensor:
    """Images or maps (B, C, H, W) at another size, bilinear, without aliasing."""
    return F.interpolate(images, size, mode='bilinear', align_corners=False, antialias=True)


@DATASETS.register_module()
class StoredViews(DecodedDataset):
    """:class:`DecodedDataset` with ``views`` crops of each image and the teacher's features of each
    crop.

    The features are computed once, in a folder beside the decoded images; the processes of a
    training share the work, and an interruption loses a few seconds of it. An image gets ``draw``
    (5,), its crop for :meth:`BatchRandomResizedCrop.crop`, ``target_map`` (112, 7, 7) and
    ``target_pooled`` (1280,). List these in the ``algorithm_keys`` of ``PackInputs``.

    Args:
        views: Number of crops of an image.
        teacher: Checkpoint that ``projects/shipped_weights/make_teacher.py`` wrote.
        teacher_size: Side of the teacher's crops in px.
        area: Least and greatest share of the image's area in a crop.
        amp: Compute the features in bfloat16.
        kwargs: Arguments of ``DecodedDataset``.
    """

    def __init__(
        self,
        *,
        views: int,
        teacher: str,
        teacher_size: int,
        area: tuple[float, float] = (0.25, 1.0),
        amp: bool = False,
        **kwargs: Any,
    ) -> None:
        check_int(views=views, teacher_size=teacher_size)
        self.views, self.teacher, self.amp = views, teacher, amp
        self.targets: list[np.ndarray] = []
        self.crop = BatchRandomResizedCrop(size=teacher_size, area=area, flip=0)
        super().__init__(**kwargs)

    def __len__(self) -> int:
        return super().__len__() * (self.views if self.targets else 1)

    def full_init(self) -> None:
        """List and decode the images, and compute what is missing of the teacher's features."""
        if self._fully_initialized:
            return
        super().full_init()
        recipe = repr((self.crop.size, self.crop.area, self.amp, sha256_of(self.teacher)))
        images = Path(str(self.images.filename))
        folder = images.parent / f'{images.stem}_{hashlib.sha256(recipe.encode()).hexdigest()[:16]}'
        network = read_teacher(self.teacher).to(get_device())
        self.draws = [
            torch.rand(5, len(self.images), generator=seeded(view)) for view in range(self.views)
        ]
        parts = [
            (view, start)
            for view in range(self.views)
            for start in range(0, len(self.images), PART)
        ]
        # Each process begins with another part.
        first = get_rank() * len(parts) // get_world_size()
        targets = {
            part: self._targets(folder, *part, network) for part in parts[first:] + parts[:first]
        }
        self.targets = [targets[part] for part in parts]

    def _targets(self, folder: Path, view: int, begin: int, network: Any) -> np.ndarray:
        images = self.images[begin : begin + PART]
        draws = self.draws[view][:, begin : begin + PART]
        file = folder / f'{view}_{begin}.npy'
        device = get_device()

        def compute(start: int, end: int) -> Tensor:
            print(f'{file}: image {start} of {len(images)}', flush=True)
            pixels = (
                torch.from_numpy(images[start:end][..., ::-1].copy()).permute(0, 3, 1, 2).float()
            )
            crops = self.crop.crop(pixels.to(device), draws[:, start:end])
            with torch.autocast(device, torch.bfloat16, enabled=self.amp):
                return torch.cat([target.flatten(1) for target in features(network, crops)], 1)

        return stored_array(
            file, (len(images), MAP_CHANNELS * GRID**2 + POOLED_CHANNELS), compute, chunk=512
        )

    def get_data_info(self, idx: int, *, decoded: bool = True) -> dict[str, Any]:
        """``DecodedDataset``'s entry of an image, with a view of it."""
        if not self.targets:
            return super().get_data_info(idx, decoded=decoded)
        view, image = divmod(idx, len(self.images))
        info = super().get_data_info(image, decoded=decoded)
        part, row = divmod(image, PART)
        stored = self.targets[view * len(self.targets) // self.views + part]
        target = torch.from_numpy(stored[row].astype(np.float32))
        target_map, target_pooled = target.split([MAP_CHANNELS * GRID**2, POOLED_CHANNELS])
        target_map = target_map.view(MAP_CHANNELS, GRID, GRID)
        return info | dict(
            draw=self.draws[view][:, image], target_map=target_map, target_pooled=target_pooled
        )


def seeded(seed: int) -> torch.Generator:
    """A generator of random numbers."""
    return torch.Generator().manual_seed(seed)


@torch.inference_mode()
def features(network: Any, pixels: Tensor) -> tuple[Tensor, Tensor]:
    """The teacher's map (B, 112, 7, 7) and pooled features (B, 1280) of pixels (B, 3, H, W), RGB, 0
    to 255.
    """
    inputs = (pixels / 127.5 - 1).contiguous(memory_format=torch.channels_last)
    last, (middle,) = network.forward_intermediates(inputs, indices=[MAP])
    return resize(middle.float(), GRID), last.float().mean((2, 3))
