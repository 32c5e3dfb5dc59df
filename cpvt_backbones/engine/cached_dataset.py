"""Classification data set that is decoded once into one array, and a crop for whole batches.

It serves small images, whose reading and decoding take longer than the network. It needs
mmpretrain; list this module in the ``custom_imports`` of a config that uses it.
"""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from mmcv.image import imread
from mmpretrain.datasets import CustomDataset
from mmpretrain.registry import BATCH_AUGMENTS, DATASETS
from torch import Tensor

from cpvt_backbones.checkpoints import atomic_write
from cpvt_backbones.checks import check, check_fraction, check_int
from cpvt_backbones.errors import InputError


@DATASETS.register_module()
class DecodedDataset(CustomDataset):
    """mmpretrain's ``CustomDataset`` that decodes each image once, for many small images.

    Reading and decoding a small image takes longer than the network. The first process decodes all
    images into one array in a file. All processes of a machine map this file into memory. If the
    files of the data set change, a new array is made.

    The pipeline gets the pixels as ``img`` and needs no ``LoadImageFromFile``. The class needs
    mmpretrain.

    Args:
        cache_dir: Folder of the array, outside of the images, because mmpretrain takes each folder
            among them for a class. ``None`` means ``decoded`` in ``torch.hub.get_dir()``.
        kwargs: Arguments of ``CustomDataset``.

    Raises:
        ValueError: Two images differ in size, or ``cache_dir`` is among the images.

    Examples:
        ```python
        custom_imports = dict(imports=[
            'cpvt_backbones',
            'cpvt_backbones.engine.cached_dataset',
        ])
        train_dataloader = dict(
            batch_size=64,
            sampler=dict(type='DefaultSampler', shuffle=True),
            dataset=dict(
                type='DecodedDataset',
                data_root='data/imagenette',
                data_prefix='train',
                pipeline=[dict(type='PackInputs')],
            ),
        )
        ```
    """

    def __init__(self, *, cache_dir: str | None = None, **kwargs: Any) -> None:
        self.cache_dir = Path(cache_dir or Path(torch.hub.get_dir(), 'decoded'))
        super().__init__(**kwargs)

    def full_init(self) -> None:
        """List the images and decode them.

        Raises:
            ValueError: ``cache_dir`` is among the images, or two images differ in size.
        """
        if self._fully_initialized:
            return
        images = Path(self.img_prefix or self.data_root or '.')
        if not self.ann_file and self.cache_dir.resolve().is_relative_to(images.resolve()):
            raise InputError(
                f'cache_dir must be outside of {str(images)!r}, whose folders are classes, got'
                f' {str(self.cache_dir)!r}'
            )
        super().full_init()
        entry = super().get_data_info
        paths = [str(entry(index)['img_path']) for index in range(len(self))]
        self.images = _decoded(paths, self.cache_dir)

    def get_data_info(self, idx: int) -> dict[str, Any]:
        """Return the entry of an image, with its pixels as ``img``, (H, W, 3) uint8 in BGR."""
        info = super().get_data_info(idx)
        info['img'] = np.array(self.images[idx])
        info['img_shape'] = info['ori_shape'] = info['img'].shape[:2]
        return info


def _decoded(paths: Sequence[str], folder: Path) -> np.memmap:
    states = [
        (os.path.abspath(path), os.stat(path).st_size, os.stat(path).st_mtime_ns) for path in paths
    ]
    file = folder / f'{hashlib.sha256(repr(states).encode()).hexdigest()[:16]}.npy'
    if not file.exists():
        shape = imread(paths[0]).shape
        with atomic_write(file) as stream:
            header = dict(descr='|u1', fortran_order=False, shape=(len(paths), *shape))
            np.lib.format.write_array_header_1_0(stream, header)
            for path in paths:
                image = imread(path)
                if image.shape != shape:
                    sizes = f'{path!r} is {image.shape[:2]} px and {paths[0]!r} {shape[:2]} px'
                    raise InputError(f'data_root: the images must be of one size, {sizes}')
                stream.write(image.tobytes())
    return np.load(file, mmap_mode='r')


@BATCH_AUGMENTS.register_module()
class BatchRandomResizedCrop:
    """Random crop and horizontal flip of a whole batch on the device that trains.

    It makes Inception's crop by one bilinear sampling of the batch. A side that is too long is cut
    to the image; mmpretrain's ``RandomResizedCrop`` draws again instead. It is a batch augmentation
    of mmpretrain and replaces steps of the pipeline.

    Args:
        size: Side of the square result in px.
        area: Minimum and maximum share of the image's area in a crop, within (0, 1].
        ratio: Minimum and maximum width / height of a crop, relative to that of the image.
        flip: Probability of a flip.

    Examples:
        ```python
        custom_imports = dict(imports=[
            'cpvt_backbones',
            'cpvt_backbones.engine.cached_dataset',
        ])
        data_preprocessor = dict(
            num_classes=10,
            batch_augments=dict(
                augments=dict(type='BatchRandomResizedCrop', size=112)
            ),
        )
        ```
    """

    def __init__(
        self,
        *,
        size: int,
        area: tuple[float, float] = (0.08, 1.0),
        ratio: tuple[float, float] = (3 / 4, 4 / 3),
        flip: float = 0.5,
    ) -> None:
        check_int(size=size)
        check(
            '(least, greatest) within (0, 1]', lambda pair: 0 < pair[0] <= pair[1] <= 1, area=area
        )
        check('(least, greatest), both positive', lambda pair: 0 < pair[0] <= pair[1], ratio=ratio)
        check_fraction(flip=flip)
        self.size, self.area, self.ratio, self.flip = size, area, ratio, flip

    def __call__(self, images: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Crop a batch.

        Args:
            images: (B, C, H, W).
            scores: Labels (B, classes).

        Returns:
            The crops (B, C, size, size), and the labels as float.
        """
        # Area, ratio, horizontal and vertical position, flip. Drawn on the CPU, so that a seed
        # gives the same crops on any device.
        draw = torch.rand(5, images.shape[0])
        area = self.area[0] + draw[0] * (self.area[1] - self.area[0])
        low, high = torch.tensor(self.ratio[0]).log(), torch.tensor(self.ratio[1]).log()
        ratio = (low + draw[1] * (high - low)).exp()
        # Shares of the image's sides, at most 1.
        width, height = (area * ratio).sqrt().clamp(max=1), (area / ratio).sqrt().clamp(max=1)
        x, y = (2 * draw[2] - 1) * (1 - width), (2 * draw[3] - 1) * (1 - height)
        sign = torch.where(draw[4] < self.flip, -1.0, 1.0)
        zero = torch.zeros_like(x)
        # Affine matrices (B, 2, 3) from the crop to the image.
        theta = torch.stack((sign * width, zero, x, zero, height, y), 1).view(-1, 2, 3)
        shape = [*images.shape[:2], self.size, self.size]
        grid = F.affine_grid(theta.to(images.device), shape, align_corners=False).to(images.dtype)
        crops = F.grid_sample(images, grid, padding_mode='border', align_corners=False)
        return crops, scores.float()
