"""EoMT of its authors, from a clone of tue-mps/eomt (MIT): its model, and its whole predictions.

The clone's code runs. It needs transformers, lightning and torchmetrics.
"""

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
import yaml
from PIL import Image
from torch import Tensor, nn

CLASSES = dict(coco_panoptic=133, ade20k_panoptic=150, coco_instance=80)
CLASSES |= dict(ade20k_semantic=150, cityscapes_semantic=19)
SIDES = dict(ade20k_semantic=512, cityscapes_semantic=1024)  # 640 px otherwise
# ViT-S, -B and one ViT-L are compared as they are, the others with 6 blocks: all are alike.
SHORT = 6
WHOLE: tuple[str, ...] = ('coco_panoptic_eomt_small_640_2x', 'coco_panoptic_eomt_base_640_2x')
WHOLE += ('ade20k_semantic_eomt_large_512',)


class AuthorsModel(nn.Module):
    """The network of one of their configs, called as a model of this package.

    Args:
        folder: The clone.
        name: Name of the published weights, such as ``'coco_panoptic_eomt_large_640'``.
        depth: Number of blocks; ``None`` is for the number that is compared with random weights.
    """

    def __init__(self, folder: Path, name: str, *, depth: int | None = None) -> None:
        super().__init__()
        self.kind, _, variant = name.partition('_eomt_')
        dataset, self.task = self.kind.split('_')
        config = folder / f'configs/dinov2/{dataset}/{self.task}/eomt_{variant}.yaml'
        content = yaml.safe_load(config.read_text(encoding='utf-8'))
        network = content['model']['init_args']['network']['init_args']
        data = content['data'].get('init_args', {})
        self.side = data.get('img_size', [SIDES.get(self.kind, 640)])[0]
        self.stuff = data.get('stuff_classes', [])
        sys.path.insert(0, str(folder))
        encoder_options = network['encoder'].get('init_args', {})
        encoder = import_module('models.vit').ViT(
            (self.side, self.side), ckpt_path='none', **encoder_options
        )
        if depth is None and name not in WHOLE:
            depth = SHORT
        encoder.backbone.blocks = encoder.backbone.blocks[:depth]
        self.network = import_module('models.eomt').EoMT(
            encoder,
            num_classes=CLASSES[self.kind],
            num_q=network['num_q'],
            num_blocks=network.get('num_blocks', 4),
            masked_attn_enabled=False,
        )

    def forward(self, images: Tensor, data_samples: Any = None, mode: str = 'tensor') -> Any:
        """Logits of classes and masks for normalised images."""
        if images.shape[2:] != (self.side, self.side):
            raise ValueError('their position table is of one size')
        encoder = self.network.encoder
        masks, classes = self.network(images * encoder.pixel_std + encoder.pixel_mean)
        return classes[-1], masks[-1]

    def make_segments(self, photo: Path) -> None:
        """Change random weights so that they predict segments: some of the queries are sure, and
        each mask is a part of the image. What is not learned gets the values of their files.
        """
        encoder = self.network.encoder
        encoder.pixel_mean.copy_(torch.tensor([0.485, 0.456, 0.406]).view(1, 3, 1, 1))
        encoder.pixel_std.copy_(torch.tensor([0.229, 0.224, 0.225]).view(1, 3, 1, 1))
        self.network.attn_mask_probs.zero_()  # at the end of a training
        image = Image.open(photo).convert('RGB').resize((self.side, self.side))
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)[None] / 255
        network = self.network
        with torch.no_grad():
            network.q.weight.normal_(0, 3)  # or all queries would be alike
            network.class_head.weight.mul_(40)
            masks, classes = (layers[-1] for layers in network(pixels))
            ahead = classes[0, :, :-1].amax(1) - classes[0, :, -1]
            network.class_head.bias[-1] += ahead.quantile(0.93)
            norm = network.upscale[-1].norm
            shift = masks[0, ::10].flatten().float().quantile(0.99)
            network.mask_head[-1].bias -= shift * norm.bias / norm.bias.square().sum()

    def predict(self, photo: Path) -> Any:
        """What their evaluation predicts: a class map, panoptic segments, or instances."""
        sys.modules.setdefault('wandb', ModuleType('wandb'))
        import lightning

        file = import_module(f'training.mask_classification_{self.task}')
        cls = getattr(file, f'MaskClassification{self.task.capitalize()}')
        module = cls.__new__(cls)
        lightning.LightningModule.__init__(module)
        module.network, module.img_size = self.network, (self.side, self.side)
        module.num_classes, module.stuff_classes = CLASSES[self.kind], self.stuff
        module.mask_thresh = module.overlap_thresh = 0.8
        module.ignore_idx, module.eval_top_k_instances = 255, 100
        found: list[Any] = []
        setattr(module, f'update_metrics_{self.task}', lambda preds, *_: found.append(preds[0]))
        image = torch.from_numpy(np.array(Image.open(photo).convert('RGB'))).permute(2, 0, 1)
        nothing = torch.zeros(0, *image.shape[1:], dtype=torch.bool)
        target = dict(masks=nothing, labels=torch.zeros(0).long(), is_crowd=torch.zeros(0).bool())
        with torch.inference_mode():
            module.eval_step(([image], [target]), batch_idx=1)
        if self.task == 'semantic':
            return found[-1].argmax(0)
        return found[-1]


def same_segments(panoptic: Tensor, wanted: Tensor, *, order: list[int] | None) -> str:
    """How many segments and pixels agree, as a cell of a table.

    A pixel agrees if its class is the same, and its segment is that with most of the pixels.

    Args:
        panoptic: mmdet's ids (H, W): class + 1000 * instance; the number of classes for none.
        wanted: The authors' classes and segments (H, W, 2); segment -1 for none.
        order: Class there of each class here, if they differ.
    """
    theirs, segments = wanted.unbind(-1)
    classes = panoptic.long() % 1000
    if order is not None:
        classes = torch.tensor([*order, len(order)])[classes]
    same = (classes == theirs) & mates(panoptic, segments) & mates(segments, panoptic)
    count, found = len(segments[segments >= 0].unique()), len(panoptic[segments >= 0].unique())
    return f'{found} of {count} segments, {same.float().mean().item():.2%} of pixels'


def mates(one: Tensor, other: Tensor) -> Tensor:
    """Whether each pixel's segment in ``other`` is the most frequent of its segment in ``one``."""
    best = torch.zeros_like(one, dtype=torch.bool)
    for segment in one.unique():
        inside = one == segment
        values, counts = other[inside].unique(return_counts=True)
        best |= inside & (other == values[counts.argmax()])
    return best


def same_instances(got: Any, wanted: dict[str, Tensor]) -> str:
    """How many of the authors' instances are found: class, score and all pixels of the mask."""
    found = 0
    for mask, label, score in zip(wanted['masks'], wanted['labels'], wanted['scores'], strict=True):
        near = (got.labels == label) & ((got.scores - score).abs() < 1e-4)
        union = (got.masks[near] | mask).sum((1, 2)).clamp(min=1)
        other = (got.masks[near] ^ mask).sum((1, 2))
        found += bool((other <= 0.001 * union).any())
    return f'{found} of {len(wanted["masks"])} masks'
