"""Ignored objects are not trained as background, through the pipeline and model of each recipe."""

import copy
import math

import pytest
import torch
from mmengine.config import Config
from mmengine.registry import init_default_scope
from shrink import CONFIGS, ROOT, Scene, batch, build, name, read, read_small
from tiny import only

PUBLISHED = sorted((ROOT / 'configs/published').rglob('*_coco.py'))
PUBLISHED += sorted((ROOT / 'configs/published/vitdet').glob('*.py'))
DETECTORS = [path for path in CONFIGS if read(path).get('default_scope') == 'mmdet'] + PUBLISHED
# mmdet's panoptic data set drops crowds when it reads the annotations.
DETECTORS = [path for path in DETECTORS if 'panoptic' not in path.name]
ONE_OF_A_FAMILY = """
retinanet/retinanet_pyramid-cpvt-t_fpn_1x_coco.py
mask_rcnn/mask-rcnn_pyramid-cpvt-t_fpn_1x_coco.py
vitdet/cascade-mask-rcnn_multiscale-cpvt-b_8xb8-lsj-100e_coco.py
detr/detr_r50_peg_8xb2-50e_coco.py
dino/dino-4scale_pyramid-cpvt-s_8xb2-12e_coco.py
mask2former/mask2former_pyramid-cpvt-s_8xb2-lsj-50e_coco.py
eomt/eomt_cpvt-l-dinov2_8xb2-12e_coco-instance-640x640.py
published/pvt/retinanet_pvtv2-b0_fpn_1x_coco.py
""".split()
HEIGHT, WIDTH = 120, 160


class LabelledScene(Scene):
    """An object in the middle, and one that fills the image and is labelled, ignored or missing."""

    def __init__(self, folder, *, labelled, ignored):
        super().__init__(folder, HEIGHT, WIDTH)
        self.objects = [(labelled, 0), (ignored, 1)]

    def raw(self, scope):
        found = super().raw(scope)
        found['instances'] = []
        for kinds, ignore_flag in self.objects:
            for kind in kinds:
                x1, y1, x2, y2 = dict(middle=[50, 40, 90, 80], all=[0, 0, WIDTH, HEIGHT])[kind]
                one = dict(bbox=[x1, y1, x2, y2], bbox_label=0, ignore_flag=ignore_flag)
                one['mask'] = [[x1, y1, x2, y1, x2, y2, x1, y2]]
                found['instances'].append(one)
        return found


def losses(model, cfg, scene):
    """Sum of the losses of classification, and of all, with the same random numbers each time."""
    torch.manual_seed(0)
    data = model.data_preprocessor(batch(cfg, 'train', [scene]), True)
    torch.manual_seed(0)
    with torch.no_grad():
        found = model.loss(data['inputs'], data['data_samples'])
    flat = {
        key: sum(part.sum().item() for part in (value if isinstance(value, list) else [value]))
        for key, value in found.items()
        if 'loss' in key
    }
    return sum(value for key, value in flat.items() if 'cls' in key), sum(flat.values())


def steady(cfg):
    """The model with random weights, and without anything random in a call."""
    torch.manual_seed(0)
    model = build(cfg)
    model.init_weights()
    model.train()
    for module in model.modules():
        if 'Drop' in type(module).__name__ or 'BatchNorm' in type(module).__name__:
            module.eval()
    return model


def without_chance(cfg):
    """The config whose pipeline draws nothing and keeps the image as it is."""
    steps = ('LoadImageFromFile', 'LoadAnnotations', 'Resize', 'PackDetInputs')
    dataset = cfg.train_dataloader.dataset
    while 'pipeline' not in dataset:
        dataset = dataset.dataset if 'dataset' in dataset else dataset.datasets[0]
    pipeline = [step for step in dataset.pipeline if step['type'] in steps]
    pipeline = [
        step | dict(scale=(WIDTH, HEIGHT)) if 'Resize' in step['type'] else step
        for step in map(dict, pipeline)
    ]
    cfg = copy.deepcopy(cfg)
    cfg.train_dataloader.dataset = Config(dict(type='CocoDataset', pipeline=pipeline))
    return cfg


@pytest.mark.parametrize(
    'path', only(*(ROOT / 'configs' / path for path in ONE_OF_A_FAMILY), of=DETECTORS), ids=name
)
def test_predictions_on_ignored_objects_are_not_background(path, tmp_path):
    cfg = without_chance(read_small(path))
    init_default_scope('mmdet')
    model = steady(cfg)

    def loss(*labelled, ignored=()):
        return losses(model, cfg, LabelledScene(tmp_path, labelled=labelled, ignored=ignored))

    both, missing = loss('middle', 'all'), loss('middle')
    ignored = loss('middle', ignored=['all'])
    assert all(map(math.isfinite, (*both, *missing, *ignored)))
    # Not less than without it: DETR divides by the number of predictions that count.
    assert len({both[1], missing[1], ignored[1]}) == 3
    assert ignored[0] != missing[0]
    # An image that has nothing else is the usual tile with a part of an object. More than half of
    # the predictions lie on the object that fills the image.
    nothing, ignored_alone = loss(), loss(ignored=['all'])
    assert math.isfinite(ignored_alone[1])
    assert ignored_alone[0] < 0.7 * nothing[0]
