"""ClassMix (arXiv 2007.07936, section 3) between labelled images."""

from typing import Any

import numpy as np
from mmcv.transforms import BaseTransform
from mmengine.dataset import BaseDataset
from mmseg.registry import TRANSFORMS


@TRANSFORMS.register_module()
class ClassMix(BaseTransform):
    """Put the pixels of half of another image's classes, with their labels, on an image.

    A transform of mmseg's `MultiImageMixDataset`, whose inner data set crops and distorts each
    image alone. Images of different sizes overlap from their top left corner; an image keeps its
    size.

    Args:
        prob: share of images that are mixed, 0 to 1.
        ignore_index: label that is never put on another image.

    Raises:
        ValueError: `prob` is not between 0 and 1.
    """

    def __init__(self, *, prob: float = 0.5, ignore_index: int = 255) -> None:
        if not 0 <= prob <= 1:
            raise ValueError(f'prob={prob}: expected a number from 0 to 1')
        self.prob = prob
        self.ignore_index = ignore_index

    def get_indices(self, dataset: BaseDataset) -> list[int]:
        """The other image: one of `dataset`, all alike."""
        return [int(np.random.randint(len(dataset)))]

    def transform(self, results: dict[str, Any]) -> dict[str, Any]:
        """Mix `img` (H, W, 3) and `gt_seg_map` (H, W) with those of the one dict in
        `mix_results`.
        """
        (other,) = results['mix_results']
        labels = np.setdiff1d(other['gt_seg_map'], [self.ignore_index])
        if len(labels) and np.random.random() < self.prob:
            height, width = np.minimum(results['gt_seg_map'].shape, other['gt_seg_map'].shape)
            chosen = np.random.choice(labels, (len(labels) + 1) // 2, replace=False)
            mask = np.isin(other['gt_seg_map'][:height, :width], chosen)
            for key in ('img', 'gt_seg_map'):
                results[key][:height, :width][mask] = other[key][:height, :width][mask]
        return results
