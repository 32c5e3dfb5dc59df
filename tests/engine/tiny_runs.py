"""What the tests of this folder train on, and what watches or stops the runs."""

import json
from pathlib import Path

import numpy as np
import torch
from mmengine.hooks import Hook
from mmengine.registry import DATASETS, HOOKS
from mmengine.structures import InstanceData, PixelData


@DATASETS.register_module()
class Pictures(torch.utils.data.Dataset):
    """Generated pictures of one size, each with its own content, every pixel labelled.

    No augmentation.

    Args:
        scope: The toolbox whose samples to hand out.
        count: How many.
        size: Height and width.
    """

    metainfo = dict(classes=('a', 'b', 'c'), palette=[(0, 0, 0), (9, 9, 9), (99, 99, 99)])

    def __init__(self, scope: str, count: int = 12, size: tuple[int, int] = (40, 56)) -> None:
        self.scope, self.count, self.size = scope, count, size

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict:
        rng = np.random.default_rng(index)
        height, width = self.size
        inputs = torch.from_numpy(rng.integers(0, 255, (3, height, width), dtype=np.uint8))
        meta = dict(img_id=index, img_shape=self.size, ori_shape=self.size)
        if self.scope == 'mmseg':
            from mmseg.structures import SegDataSample

            labels = torch.from_numpy(rng.integers(0, 3, (1, height // 8, width // 8)))
            labels = labels.repeat_interleave(8, 1).repeat_interleave(8, 2)
            sample = SegDataSample(gt_sem_seg=PixelData(data=labels), metainfo=meta)
        elif self.scope == 'mmpretrain':
            from mmpretrain.structures import DataSample

            sample = DataSample(metainfo=meta).set_gt_label(index % 3)
        else:
            from mmdet.structures import DetDataSample

            corner = torch.from_numpy(rng.uniform(0, 10, (2, 2))).float()
            boxes = torch.cat(
                (corner, corner + torch.from_numpy(rng.uniform(16, 28, (2, 2))).float()), dim=1
            )
            instances = InstanceData(bboxes=boxes, labels=torch.tensor([index % 3, 1]))
            sample = DetDataSample(
                gt_instances=instances, ignored_instances=InstanceData(bboxes=boxes[:0])
            )
            sample.set_metainfo(meta)
        return dict(inputs=inputs, data_samples=sample)


@HOOKS.register_module()
class Notes(Hook):
    """Writes to ``<work_dir>/notes_<rank>.json`` what a checkpoint does not tell."""

    def after_train(self, runner) -> None:
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

        groups = runner.optim_wrapper.optimizer.param_groups
        notes = dict(
            runner=type(runner).__name__,
            units=[type(m.module).__name__ for m in runner.model.modules() if isinstance(m, FSDP)],
            weights_in_optimizer=sum(p.numel() for group in groups for p in group['params']),
        )
        Path(runner.work_dir, f'notes_{runner.rank}.json').write_text(json.dumps(notes))
