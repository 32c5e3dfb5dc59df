"""Resolution sweep: metrics as of tools/test.py, resuming, limits, and scaled test pipelines."""

import json

import pytest
import torch
from mmengine.config import Config
from tiny import only

from cpvt_backbones.analysis.image_size import TestSize, scale_test_images
from cpvt_backbones.analysis.resolution import (
    ForwardMeter,
    SweepModel,
    SweepRow,
    good_sizes,
    read_rows,
    sweep,
)
from cpvt_backbones.engine import launch
from cpvt_backbones.toolboxes import read_config

SCOPES = ('mmdet', 'mmseg', 'mmpretrain')
ONE = [TestSize(factor=1)]


@pytest.fixture
def candidate(trained):
    def build(scope, name='model'):
        path, checkpoint = trained(scope, name)
        return SweepModel(name, read_config(path, work_dir=path.parent / 'work'), checkpoint)

    return build


@pytest.fixture
def plain_test(tmp_path):
    """Metrics of the test set as the config has it, or of some of its images."""

    def test(model, indices=None):
        cfg = read_config(tmp_path / 'model.py', work_dir=tmp_path / 'work')
        if indices and cfg.default_scope == 'mmdet':
            truth = json.loads((tmp_path / 'model/truth.json').read_text())
            truth['images'] = [i for i in truth['images'] if i['id'] in indices]
            truth['annotations'] = [a for a in truth['annotations'] if a['image_id'] in indices]
            cfg.test_evaluator.ann_file = str(tmp_path / 'model/part.json')
            (tmp_path / 'model/part.json').write_text(json.dumps(truth))
            cfg.test_dataloader.dataset.ann_file = 'part.json'
        elif indices:
            cfg.test_dataloader.dataset.indices = indices
        metrics = launch.test(cfg, checkpoint=model.checkpoint)
        return {name: float(value) for name, value in metrics.items()}

    return test


@pytest.mark.parametrize('scope', only('mmseg', of=SCOPES))
def test_factor_one_equals_the_plain_test(scope, candidate, plain_test, tmp_path):
    model = candidate(scope)
    one, two = sweep([model], [*ONE, TestSize(factor=2)], table=tmp_path / 'sweep.csv')
    assert one.metrics == plain_test(model)
    assert any(value > 0 for value in one.metrics.values())
    if scope != 'mmpretrain':  # too few images for a difference
        assert two.metrics != one.metrics
    assert one.images == two.images == 6
    assert two.zoom == pytest.approx(2 * one.zoom) and one.zoom > 0
    # The segmentor pads images of 33 to 38 x 50 px to a multiple of 8, which does not count.
    assert (two.height, two.width) == pytest.approx((2 * one.height, 2 * one.width))
    assert one.seconds > 0 and 0 < one.peak_mib < two.peak_mib
    assert read_rows(tmp_path / 'sweep.csv')[1].metrics == pytest.approx(two.metrics, rel=1e-5)


@pytest.mark.full
@pytest.mark.parametrize('scope', SCOPES)
def test_limit_restricts_images_and_annotations(scope, candidate, plain_test, tmp_path):
    """Left-out images do not count as missed; the tested ones are evenly spaced."""
    model = candidate(scope)
    (row,) = sweep([model], ONE, table=tmp_path / 'some.csv', limit=2)
    assert row.images == 2
    assert row.metrics == plain_test(model, indices=[0, 3])


@pytest.mark.parametrize(
    ('scores', 'low', 'high'),
    [
        ((0.18, 0.5, 0.49, 0.41), 1, 1.5),
        ((0.5, 0.5, 0.5, 0.5), 0.5, 2),
        ((0.5, 0.3, 0.49, 0.1), 0.5, 0.5),  # around the best, without gaps
        ((0.1, 0.3, 0.4, 0.5), 2, 2),
        ((0.49, 0.5, 0.3, 0.1), 0.5, 1),
    ],
)
def test_good_sizes_are_those_around_the_best(scores, low, high):
    rows = []
    for factor, score in zip((0.5, 1, 1.5, 2), scores, strict=True):
        size = 30 * factor, 120 * factor
        cost = 0.1, 1.0, 'cpu', 'x'
        rows.append(SweepRow('a', f'{factor:g}', 6, *size, *cost, dict(mIoU=score), 0.5 * factor))
    found = good_sizes(rows[::-1])
    assert (found.low, found.high) == (low, high)
    assert (found.side, found.zoom, found.metric) == (60, 0.5, 'mIoU')
    with pytest.raises(ValueError, match=r"size '1' with a zoom, got sizes \['0.5'\]"):
        good_sizes(rows[:1])


@pytest.mark.full
def test_finished_sizes_are_not_repeated(candidate, tmp_path, monkeypatch):
    model, table = candidate('mmseg'), tmp_path / 'sweep.csv'
    ran = []
    before = ForwardMeter.before_test

    def counted(self, runner):
        if '2' in self.label.split():
            raise KeyboardInterrupt
        ran.append(self.label)
        before(self, runner)

    monkeypatch.setattr(ForwardMeter, 'before_test', counted)
    half, side, double = TestSize(factor=0.5), TestSize(side=40), TestSize(factor=2)
    sweep([model], [half], table=table)
    first = read_rows(table)
    sweep([model], [half, side], table=table)
    assert len(ran) == 2 and 'at 40px' in ran[1]
    assert read_rows(table)[0] == first[0]
    with pytest.raises(KeyboardInterrupt):
        sweep([model], [double], table=table)
    # An interruption loses the current size only.
    assert [row.size for row in read_rows(table)] == ['0.5', '40px']


@pytest.mark.parametrize('change', ['checkpoint', 'config', 'limit'])
def test_rows_of_another_source_are_refused(change, candidate, tmp_path):
    model, table = candidate('mmseg'), tmp_path / 'sweep.csv'
    sweep([model], ONE, table=table)
    written = table.read_bytes()
    if change == 'checkpoint':
        content = torch.load(model.checkpoint)
        content['state_dict']['decode_head.conv_seg.bias'] += 1
        torch.save(content, model.checkpoint)
    elif change == 'config':
        model.cfg.model.data_preprocessor.std = [30.0] * 3
    with pytest.raises(ValueError, match="has rows of 'model' from another config, checkpoint"):
        sweep([model], ONE, table=table, limit=3 if change == 'limit' else None)
    assert table.read_bytes() == written


@pytest.mark.full
def test_command_line(trained, call, refused, tmp_path, capsys):
    path, checkpoint = trained('mmseg')
    out = tmp_path / 'out/sweep.csv'
    models = ['--models', f'tiny={path}:{checkpoint}']
    call('resolution_sweep', *models, '--sizes', '0.5', '48px', '--out', out)
    printed = capsys.readouterr().out
    assert 'tiny' in printed and 'mIoU' in printed and '48px' in printed
    models = ['--models', f'tiny={path}:{tmp_path / "none.pth"}']
    assert 'there is no file' in refused('resolution_sweep', *models, '--out', out)


# -- the pipeline

LOAD, PACK = dict(type='LoadImageFromFile'), dict(type='PackInputs')
RESIZE = dict(type='Resize', scale=(1333, 800), keep_ratio=True)
PAD = dict(type='Pad', size_divisor=32)


def pipeline_at(size, **dataset):
    """Pipeline of the test set at the size."""
    cfg = Config(dict(test_dataloader=dict(dataset=dataset)))
    scale_test_images(cfg, TestSize.parse(size))
    return cfg.test_dataloader.dataset.pipeline


def resize_and_crop(edge, side):
    return [dict(type='ResizeEdge', scale=edge), dict(type='CenterCrop', crop_size=side)]


@pytest.mark.parametrize(
    ('steps', 'size', 'expected'),
    [
        ([RESIZE], '0.5', [{**RESIZE, 'scale': (666, 400)}]),
        ([RESIZE], '1', [RESIZE]),
        ([RESIZE], '1200px', [{**RESIZE, 'scale': (2000, 1200)}]),
        ([dict(type='Resize', scale_factor=0.5)], '3', [dict(type='Resize', scale_factor=1.5)]),
        (resize_and_crop(256, 224), '2', resize_and_crop(512, 448)),
        (resize_and_crop(256, 224), '112px', resize_and_crop(128, 112)),
        ([RESIZE, PAD], '1', [RESIZE, PAD]),
        ([], '1', []),
        ([], '2', [dict(type='mmcv.Resize', keep_ratio=False, scale_factor=2.0)]),
        ([], '64px', [dict(type='mmcv.Resize', keep_ratio=True, scale=(1_000_000, 64))]),
    ],
    ids=str,
)
def test_pipeline_steps_are_scaled(steps, size, expected):
    found = pipeline_at(size, pipeline=[LOAD, *steps, PACK])
    assert [dict(step) for step in found] == [LOAD, *expected, PACK]


def test_a_data_set_that_decodes_its_images_needs_no_loading_step():
    found = pipeline_at('2', pipeline=[dict(type='mmdet.Resize', scale=(8, 8)), PACK])
    assert found[0].scale == (16, 16)


@pytest.mark.parametrize(
    ('size', 'dataset', 'message'),
    [
        ('1', dict(pipeline=[LOAD, dict(type='RandomCrop')]), "'RandomCrop' cannot be scaled"),
        ('2', dict(pipeline=[LOAD, dict(type='TestTimeAug')]), "step 'TestTimeAug'"),
        ('2', dict(pipeline=[LOAD, dict(type='LoadAnnotations'), RESIZE]), "after 'Resize'"),
        ('64px', dict(pipeline=[LOAD, dict(type='Resize', scale_factor=2.0)]), 'a factor'),
        ('2', dict(pipeline=[PACK]), 'loads no image'),
        ('2', dict(type='Pictures'), 'has no pipeline'),
    ],
)
def test_other_pipelines_are_refused(size, dataset, message):
    with pytest.raises(ValueError, match=message):
        pipeline_at(size, **dataset)


def test_pipelines_of_wrapped_data_sets_are_scaled():
    inner = [dict(pipeline=[LOAD, RESIZE]), dict(dataset=dict(pipeline=[LOAD, RESIZE]))]
    cfg = Config(dict(test_dataloader=dict(dataset=dict(type='ConcatDataset', datasets=inner))))
    scale_test_images(cfg, TestSize(factor=2))
    assert str(cfg.test_dataloader).count('(2666, 1600)') == 2


def test_sizes_are_factors_or_px():
    assert TestSize.parse('16') == TestSize(factor=16)
    with pytest.raises(ValueError, match=r"got '640'; '640px' is a side of 640 px"):
        TestSize.parse('640')
    for text in ('', '0', '-1', 'px', '1.5px', '0px', 'big'):
        with pytest.raises(ValueError, match='size must be'):
            TestSize.parse(text)
