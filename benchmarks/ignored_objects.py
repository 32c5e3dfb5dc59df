"""Training with ignored objects: what a detector finds afterwards, by how they are handled.

python benchmarks/ignored_objects.py --out docs/benchmarks/ignored.csv

A RetinaNet starts from the shipped detector, backbone frozen, and trains for 120 steps of two drawn
images. Two scenes:

- ``apart``: two squares of one kind in each image, one labelled and one to ignore, side at random.
- ``inside``: a square to ignore lies inside a large labelled one, and a labelled square beside it.

Handlings of the ignored square: ``background`` (mmdet's default), ``ignore_iof_thr`` (mmdet's
setting, 0.5), ``no loss`` (:class:`IgnoreAwareMaxIoUAssigner`), ``hidden`` (its pixels are filled
with the mean colour, except in labelled boxes) and ``labelled`` (the upper bound). The table has
the scores of squares as were ignored, in 16 unseen images, and of rectangles in the fill's colour,
on which a detector should find nothing. Medians are over images; ``found`` counts scores above 0.5.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # for `benchmarks`, where this file runs as a script

import numpy as np  # noqa: E402
import pandas as pd  # noqa: E402
import torch  # noqa: E402
from mmengine.registry import MODELS, init_default_scope  # noqa: E402
from mmengine.structures import InstanceData  # noqa: E402
from torch import nn  # noqa: E402

import cpvt_backbones  # noqa: E402, F401  (registers the models)
from benchmarks.in_turns import machine, parse_args  # noqa: E402
from cpvt.command_line import run  # noqa: E402
from cpvt_backbones.checkpoints import read_checkpoint  # noqa: E402
from cpvt_backbones.toolboxes import read_config  # noqa: E402

CONFIG = ROOT / 'configs/bccd/retinanet_cpvt-tiny-gap_bccd.py'
HEIGHT, WIDTH, SIDE = 96, 160, 28
MEAN = (103, 116, 123)  # BGR
STEPS, SEEN, UNSEEN = 120, 32, 16
HANDLINGS = ('background', 'ignore_iof_thr', 'no loss', 'hidden', 'labelled')
Box = tuple[int, int, int, int]


class Scene(NamedTuple):
    """An image (3, H, W) with labelled boxes, their classes, and one box to ignore."""

    image: np.ndarray
    labelled: list[Box]
    classes: list[int]
    ignored: Box


def _square(image: np.ndarray, rng: np.random.Generator, left: int, top: int) -> Box:
    image[:, top : top + SIDE, left : left + SIDE] = rng.integers(180, 250, (3, 1, 1))
    return left, top, left + SIDE, top + SIDE


def draw(kind: str, rng: np.random.Generator) -> Scene:
    """One image of a scene."""
    image = rng.integers(60, 120, (3, HEIGHT, WIDTH), np.uint8)
    if kind == 'apart':
        boxes = [
            _square(image, rng, int(rng.integers(4 + 80 * side, 44 + 80 * side)), top)
            for side, top in enumerate(rng.integers(4, 60, 2).tolist())
        ]
        if rng.random() < 0.5:
            boxes.reverse()
        return Scene(image, boxes[:1], [0], boxes[1])
    left, top = int(rng.integers(4, 12)), int(rng.integers(2, 10))
    large = (left, top, left + 76, top + 80)
    image[:, top : top + 80, left : left + 76] //= 3
    inside = _square(image, rng, left + int(rng.integers(4, 44)), top + int(rng.integers(4, 48)))
    beside = _square(image, rng, int(rng.integers(94, 128)), int(rng.integers(4, 60)))
    return Scene(image, [large, beside], [1, 0], inside)


def _instances(boxes: Sequence[Box], classes: Sequence[int]) -> InstanceData:
    return InstanceData(
        bboxes=torch.tensor(boxes, dtype=torch.float32).reshape(-1, 4),
        labels=torch.tensor(classes, dtype=torch.long),
    )


def prepare(scene: Scene, handling: str) -> tuple[torch.Tensor, Any]:
    """Input and data sample of a training."""
    from mmdet.structures import DetDataSample

    image, labelled, classes = scene.image.copy(), list(scene.labelled), list(scene.classes)
    if handling == 'hidden':
        left, top, right, bottom = scene.ignored
        image[:, top:bottom, left:right] = np.array(MEAN, np.uint8)[:, None, None]
        for x0, y0, x1, y1 in labelled:
            image[:, y0:y1, x0:x1] = scene.image[:, y0:y1, x0:x1]
    if handling == 'labelled':
        labelled, classes = [*labelled, scene.ignored], [*classes, 0]
    keeps = handling in ('background', 'ignore_iof_thr', 'no loss')
    shape = dict(img_shape=(HEIGHT, WIDTH), ori_shape=(HEIGHT, WIDTH), scale_factor=(1.0, 1.0))
    sample = DetDataSample(metainfo=shape)
    sample.gt_instances = _instances(labelled, classes)
    sample.ignored_instances = _instances([scene.ignored] * keeps, [0] * keeps)
    return torch.from_numpy(image), sample


def build(handling: str, classes: int) -> Any:
    """The detector with the shipped weights that fit, backbone frozen."""
    cfg = read_config(CONFIG)
    init_default_scope('mmdet')
    cfg.model.backbone.init_cfg = None
    cfg.model.bbox_head.num_classes = classes
    assigner = cfg.model.train_cfg.assigner
    assigner.type = 'IgnoreAwareMaxIoUAssigner' if handling == 'no loss' else 'MaxIoUAssigner'
    assigner.ignore_iof_thr = 0.5 if handling == 'ignore_iof_thr' else -1
    model = MODELS.build(cfg.model)
    content = read_checkpoint('retinanet_cpvt_tiny_gap-bccd')
    weights, own = content.get('state_dict', content), model.state_dict()
    fitting = {key: w for key, w in weights.items() if key in own and own[key].shape == w.shape}
    model.load_state_dict(fitting, strict=False)
    model.backbone.requires_grad_(False)
    return model


def train(model: Any, scenes: Sequence[Scene], handling: str, seed: int) -> None:
    """Train for ``STEPS`` steps of two images."""
    rng = np.random.default_rng(seed)
    parameters = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(parameters, 5e-4)
    model.train()
    for _ in range(STEPS):
        pairs = [prepare(scenes[index], handling) for index in rng.choice(SEEN, 2, replace=False)]
        inputs, samples = zip(*pairs, strict=True)
        batch = dict(inputs=list(inputs), data_samples=list(samples))
        data = model.data_preprocessor(batch, True)
        loss, _ = model.parse_losses(model.loss(data['inputs'], data['data_samples']))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 5.0)
        optimizer.step()


def score(model: Any, image: np.ndarray, box: Box) -> float:
    """Highest score of a box of class 0 that overlaps the given one by half; 0 without."""
    from mmdet.structures.bbox import bbox_overlaps

    _, sample = prepare(Scene(image, [], [], box), 'labelled')
    batch = dict(inputs=[torch.from_numpy(image)], data_samples=[sample])
    with torch.inference_mode():
        found: Any = model.test_step(batch)[0].pred_instances
    found = found[found.labels == 0]
    overlaps = bbox_overlaps(torch.tensor([box], dtype=torch.float32), found.bboxes)[0]
    return float(found.scores[overlaps > 0.5].max()) if (overlaps > 0.5).any() else 0.0


def measure(kind: str, handling: str, seed: int) -> dict[str, object]:
    """Row of the table: one training."""
    rng = np.random.default_rng(0)
    scenes = [draw(kind, rng) for _ in range(SEEN + UNSEEN)]
    torch.manual_seed(seed)
    model = build(handling, classes=1 if kind == 'apart' else 2)
    train(model, scenes, handling, seed)
    model.eval()
    scores = np.array([score(model, scene.image, scene.ignored) for scene in scenes[SEEN:]])
    fills = []
    for _ in range(UNSEEN):
        image = rng.integers(60, 120, (3, HEIGHT, WIDTH), np.uint8)
        left, top = int(rng.integers(4, WIDTH - SIDE - 4)), int(rng.integers(4, HEIGHT - SIDE - 4))
        image[:, top : top + SIDE, left : left + SIDE] = np.array(MEAN, np.uint8)[:, None, None]
        fills.append(score(model, image, (left, top, left + SIDE, top + SIDE)))
    return dict(
        scene=kind,
        handling=handling,
        seed=seed,
        median=round(float(np.median(scores)), 2),
        found=int((scores > 0.5).sum()),
        objects=UNSEEN,
        fill_median=round(float(np.median(fills)), 2),
        fill_found=int((np.array(fills) > 0.5).sum()),
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Write a row for each scene, handling and seed."""
    args = parse_args(__doc__, argv, repeats=3)
    rows = []
    for kind in ('apart', 'inside'):
        for handling in HANDLINGS:
            for seed in range(args.repeats):
                rows.append(measure(kind, handling, seed) | dict(machine=machine()))
                print({key: value for key, value in rows[-1].items() if key != 'machine'})
                pd.DataFrame(rows).to_csv(args.out, index=False)


if __name__ == '__main__':
    run(main)
