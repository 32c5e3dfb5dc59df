"""What a label means: data sets against their annotations, metrics, each other and heads."""

import json
import re
from types import SimpleNamespace

import pytest
import torch
from mmengine.dataset import ConcatDataset, RepeatDataset
from mmengine.registry import DATASETS, METRICS
from mmengine.runner import BaseLoop
from PIL import Image

from cpvt_backbones.engine.class_names import check_runner_classes
from cpvt_backbones.engine.training_checks import check_heads
from cpvt_backbones.errors import InputError

CLASSES = ('car', 'person', 'tree')


class Loop(BaseLoop):
    def __init__(self, dataset, *metrics):
        self.dataloader = SimpleNamespace(dataset=dataset)
        self.evaluator = SimpleNamespace(metrics=metrics)

    def run(self):
        raise NotImplementedError


def check(dataset=None, *metrics, val=None, test=None):
    loops = dict(
        _train_loop=None if dataset is None else Loop(dataset, *metrics), _test_loop=dict()
    )
    if val is not None:
        loops['_val_loop'] = Loop(val)
    if test is not None:
        loops['_test_loop'] = Loop(test, *metrics)
    check_runner_classes(SimpleNamespace(**loops))


@pytest.fixture
def coco(tmp_path):
    """mmdet's data set for names of categories, and for ``metainfo.classes``."""
    pytest.importorskip('mmdet')
    import mmdet.datasets
    import mmdet.evaluation  # noqa: F401

    def make(names, classes, file='a.json', images=('1.png', '2.png')):
        path = tmp_path / file
        if names is not None:
            ids = [50 - 10 * place for place in range(len(names))]  # falling, as ids may
            content = dict(
                images=[
                    dict(id=7 + place, file_name=name, width=9, height=9)
                    for place, name in enumerate(images)
                ],
                categories=[dict(id=i, name=name) for i, name in zip(ids, names, strict=True)],
                annotations=[
                    dict(id=i, image_id=7, category_id=i, bbox=[1, 1, 4, 4], area=16, iscrowd=0)
                    for i in ids
                ],
            )
            path.write_text(json.dumps(content))
        options = dict(metainfo=dict(classes=classes)) if classes is not None else {}
        return DATASETS.build(
            dict(
                type='mmdet.CocoDataset',
                ann_file=str(path),
                data_prefix=dict(img=''),
                test_mode=True,
                **options,
            )
        )

    return make


@pytest.mark.parametrize(
    ('names', 'classes'),
    [
        (CLASSES, CLASSES),
        (CLASSES, list(CLASSES)),
        (('bus', *CLASSES, 'zebra'), CLASSES),  # only some classes are trained
        (CLASSES, ('car', 'tree')),
        (('tree',), ('tree',)),
    ],
)
def test_a_coco_json_with_the_order_of_the_classes_is_taken(names, classes, coco):
    check(coco(names, classes))


@pytest.mark.parametrize(
    ('names', 'classes', 'words'),
    [
        (CLASSES[::-1], CLASSES, 'number them as (tree, person, car)'),
        (('person', 'car', 'tree'), CLASSES, 'number them as (person, car, tree)'),
        (('car', 'bus', 'tree', 'person'), CLASSES, 'number them as (car, tree, person)'),
        (CLASSES, ('tree', 'car'), 'number them as (car, tree)'),
        (('car', 'tree'), CLASSES, 'lack (person): they give the labels (car, tree)'),
        (('car', 'person'), CLASSES, 'lack (tree)'),
        (('car', 'Person', 'tree'), CLASSES, 'lack (person)'),
        (('car', 'car', 'person', 'tree'), CLASSES, 'as (car, car, person, tree)'),
        (CLASSES, ('car', 'person', 'tree', 'tree'), "has 'tree' twice"),
        (('x', 'y', 'z'), CLASSES, 'lack (car, person, tree)'),
        (CLASSES, None, '... (80 in all)), but the'),  # the names of mmdet's own type
    ],
)
def test_a_coco_json_that_numbers_the_classes_otherwise_is_refused(names, classes, words, coco):
    """mmdet takes each of them, and labels cars as persons."""
    with pytest.raises(InputError, match='^train_dataloader.dataset: ') as error:
        check(coco(names, classes))
    assert words in str(error.value)


def test_categories_in_another_place_of_a_coco_json_do_not_count(coco, tmp_path):
    dataset = coco(CLASSES[::-1], CLASSES)
    content = json.loads((tmp_path / 'a.json').read_text())
    ids = [category['id'] for category in content['categories']]
    other = [dict(id=i, name=name) for i, name in zip(ids, CLASSES, strict=True)]
    for first in (dict(info=dict(categories=other)), dict(info='"categories": []'), {}):
        (tmp_path / 'a.json').write_text(json.dumps(first | content), encoding='utf-8-sig')
        with pytest.raises(InputError, match=r'number them as \(tree, person, car\)'):
            check(dataset)


def test_data_sets_inside_of_others_and_the_test_set_are_checked(coco):
    right, wrong = coco(CLASSES, CLASSES), coco(CLASSES[::-1], CLASSES, 'b.json')
    check(ConcatDataset([right, right]), test=right)
    for dataset in (ConcatDataset([right, wrong]), RepeatDataset(wrong, 2)):
        with pytest.raises(
            InputError, match=r"^train_.*b.json' number them as \(tree, person, car"
        ):
            check(dataset)
    with pytest.raises(InputError, match='^test_dataloader.dataset: '):
        check(right, test=wrong)


def test_the_metric_of_a_detector_has_the_same_classes_and_images(coco):
    dataset = coco(CLASSES, CLASSES)

    def metric(file):
        return METRICS.build(dict(type='mmdet.CocoMetric', ann_file=str(file)))

    file = dataset.ann_file
    check(dataset, metric(file))
    coco(CLASSES[::-1], CLASSES[::-1], 'b.json')
    with pytest.raises(InputError, match=r'its ann_file number them as \(tree, person, car\)'):
        check(dataset, metric(file.replace('a.json', 'b.json')))
    coco(CLASSES, CLASSES, 'c.json', images=('2.png', '1.png'))
    with pytest.raises(InputError, match=r"gives the id 7 to '2.png', the data set to '.*1.png'"):
        check(dataset, metric(file.replace('a.json', 'c.json')))


@pytest.fixture
def folders(tmp_path):
    """mmpretrain's data set of class folders."""
    pytest.importorskip('mmpretrain')
    import mmpretrain.datasets  # noqa: F401

    def make(names, classes, **options):
        for name in names:
            (tmp_path / name).mkdir(exist_ok=True)
            Image.new('RGB', (4, 4)).save(tmp_path / name / '0.png')
        data = dict(type='mmpretrain.CustomDataset', data_root=str(tmp_path), classes=classes)
        return DATASETS.build(dict(data, **options))

    return make


@pytest.mark.parametrize(
    ('names', 'classes'),
    [
        ('cab', ('a', 'b', 'c')),
        ('cab', None),
        (('n01', 'n02'), ('tench', 'church')),  # codes of folders, as ImageNet's
        (('gas_pump', 'Golf ball'), ('golf ball', 'gas pump')),  # sorted: G before g
    ],
)
def test_class_folders_in_the_order_of_the_classes_are_taken(names, classes, folders):
    check(folders(names, classes))


@pytest.mark.parametrize(
    ('names', 'classes', 'words'),
    [
        ('abc', ('b', 'a', 'c'), 'number them as (a, b, c)'),
        (('cat', 'Dog'), ('cat', 'dog'), 'number them as (Dog, cat)'),
        (('cat', 'horse'), ('cat', 'dog'), 'lack (dog)'),
        (('a-b', 'a_a'), ('a a', 'a b'), 'as (a-b, a_a)'),
    ],
)
def test_class_folders_in_another_order_are_refused(names, classes, words, folders):
    with pytest.raises(InputError, match=f'the folders of .*{re.escape(words)}'):
        check(folders(names, classes))


def test_the_classes_of_an_openmmlab_json(folders, tmp_path):
    stored = ('b', 'a')
    content = dict(metainfo=dict(classes=stored), data_list=[dict(img_path='0.png', gt_label=0)])
    (tmp_path / 'a.json').write_text(json.dumps(content))
    options = dict(type='mmpretrain.BaseDataset', ann_file='a.json', data_root=str(tmp_path))
    with pytest.raises(InputError, match=r"metainfo.classes of '.*a.json'"):
        check(folders((), ('a', 'b'), **options))
    check(folders((), stored, **options))
    check(folders((), None, **options))


def masks(**options):
    pytest.importorskip('mmseg')
    import mmseg.datasets  # noqa: F401

    return DATASETS.build(dict(type='mmseg.BaseSegDataset', lazy_init=True, **options))


@pytest.mark.parametrize('names', ['ba', 'ac', 'abc'])
def test_validation_has_the_classes_of_the_training(names):
    train = masks(metainfo=dict(classes=('a', 'b')))
    check(train, val=masks(metainfo=dict(classes=('a', 'b'))))
    with pytest.raises(InputError, match='^val_dataloader.dataset: metainfo.classes is .*in train'):
        check(train, val=masks(metainfo=dict(classes=tuple(names))))


def test_validation_reads_masks_as_the_training_does():
    meta = dict(classes=('a', 'b'))
    with pytest.raises(InputError, match='reduce_zero_label is True, in train.* it is False'):
        check(masks(metainfo=meta), val=masks(metainfo=meta, reduce_zero_label=True))


@pytest.mark.parametrize(
    ('names', 'chosen', 'taken'),
    [
        (['a', 'b'], None, True),
        (None, None, True),  # weights that do not say
        (['b', 'a'], None, False),
        (['x', 'b', 'a'], [2, 1], True),
        (['x', 'b', 'a'], [1, 2], False),
    ],
)
def test_a_teacher_knows_the_classes_of_the_student(names, chosen, taken):
    pytest.importorskip('mmpretrain')
    from cpvt_backbones.engine.distillation import HardDistillation

    student = HardDistillation.__new__(HardDistillation)
    torch.nn.Module.__init__(student)
    student._teacher, student._teacher_names = [torch.nn.Identity()], names
    student.teacher_classes = chosen
    if taken:
        check_heads(student, ['a', 'b'], 'train_dataloader.dataset')
        return
    with pytest.raises(
        InputError, match=r'model.teacher knows the classes \(b, a\), train.*\(a, b'
    ):
        check_heads(student, ['a', 'b'], 'train_dataloader.dataset')
