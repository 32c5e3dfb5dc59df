"""Resolution sweep: metrics as of tools/test.py, resuming, limits, and scaled test pipelines."""

import csv

import pytest
import torch
from mmengine.config import Config

from cpvt_backbones.analysis.image_size import TestSize, scale_test_images
from cpvt_backbones.analysis.resolution import (
    ForwardMeter,
    SweepModel,
    SweepRow,
    good_sizes,
    main_metric,
    read_rows,
    sweep,
)
from cpvt_backbones.engine import launch
from cpvt_backbones.toolboxes import read_config
from tools.plots import draw_sweep

SCOPES = ('mmdet', 'mmseg', 'mmpretrain')


@pytest.fixture
def candidate(trained):
    def build(scope, name='model'):
        path, checkpoint = trained(scope, name)
        return SweepModel(name, read_config(path, work_dir=path.parent / 'work'), checkpoint)

    return build


@pytest.mark.parametrize('scope', SCOPES)
def test_factor_one_equals_the_plain_test(scope, candidate, tmp_path):
    model = candidate(scope)
    rows = sweep([model], [TestSize(factor=1), TestSize(factor=2)], table=tmp_path / 'sweep.csv')
    plain = launch.test(
        read_config(tmp_path / 'model.py', work_dir=tmp_path / 'work'), checkpoint=model.checkpoint
    )
    assert rows[0].metrics == {name: float(value) for name, value in plain.items()}
    assert any(value > 0 for value in rows[0].metrics.values())
    if scope != 'mmpretrain':  # too few images for a difference
        assert rows[1].metrics != rows[0].metrics
    one, two = rows
    assert one.images == two.images == 6
    assert two.zoom == pytest.approx(2 * one.zoom) and one.zoom > 0
    # The detector's preprocessor pads to a multiple of 8, and 48 x 64 is one.
    assert (two.height, two.width) == pytest.approx((2 * one.height, 2 * one.width))
    assert one.seconds > 0 and 0 < one.peak_mib < two.peak_mib
    assert read_rows(tmp_path / 'sweep.csv')[1].metrics == pytest.approx(two.metrics, rel=1e-5)


@pytest.mark.parametrize(
    ('scores', 'low', 'high'),
    [
        ((0.18, 0.5, 0.49, 0.41), 1, 1.5),
        ((0.5, 0.5, 0.5, 0.5), 0.5, 2),
        ((0.5, 0.3, 0.49, 0.1), 0.5, 0.5),  # around the best, without gaps
        ((0.1, 0.3, 0.4, 0.5), 2, 2),
    ],
)
def test_good_sizes_are_those_around_the_best(scores, low, high):
    rows = [
        SweepRow(
            'a',
            f'{factor:g}',
            6,
            30 * factor,
            120 * factor,
            0.1,
            1.0,
            'cpu',
            'x',
            dict(mIoU=score),
            0.5 * factor,
        )
        for factor, score in zip((0.5, 1, 1.5, 2), scores, strict=True)
    ]
    found = good_sizes(rows[::-1])
    assert (found.low, found.high, found.side, found.zoom, found.metric) == (
        low,
        high,
        60,
        0.5,
        'mIoU',
    )
    with pytest.raises(ValueError, match=r"size '1' with a zoom, got sizes \['0.5'\]"):
        good_sizes(rows[:1])


@pytest.mark.parametrize('scope', SCOPES)
def test_limit_restricts_images_and_annotations(scope, candidate, tmp_path):
    """Left-out images do not count as missed; the tested ones are evenly spaced."""
    model = candidate(scope)
    row = sweep([model], [TestSize(factor=1)], table=tmp_path / 'some.csv', limit=2)[0]
    assert row.images == 2
    cfg = read_config(tmp_path / 'model.py', work_dir=tmp_path / 'work')
    if scope == 'mmdet':  # the annotations of the first and the fourth image
        from mmengine.fileio import dump, load

        whole = load(cfg.test_evaluator.ann_file)
        part = {**whole, 'images': [i for i in whole['images'] if i['id'] in (0, 3)]}
        part['annotations'] = [a for a in whole['annotations'] if a['image_id'] in (0, 3)]
        dump(part, str(tmp_path / 'model/part.json'))
        cfg.test_evaluator.ann_file = str(tmp_path / 'model/part.json')
        cfg.test_dataloader.dataset.ann_file = 'part.json'
    else:
        cfg.test_dataloader.dataset.indices = [0, 3]
    assert row.metrics == {
        k: float(v) for k, v in launch.test(cfg, checkpoint=model.checkpoint).items()
    }


def test_finished_sizes_are_not_repeated(candidate, tmp_path, monkeypatch):
    model, table = candidate('mmseg'), tmp_path / 'sweep.csv'
    ran = []
    before = ForwardMeter.before_test
    monkeypatch.setattr(
        ForwardMeter,
        'before_test',
        lambda self, runner: ran.append(self.label) or before(self, runner),
    )
    sweep([model], [TestSize(factor=0.5)], table=table)
    first = read_rows(table)
    sweep([model], [TestSize(factor=0.5), TestSize(side=40)], table=table)
    assert len(ran) == 2 and 'at 40px' in ran[1]
    assert read_rows(table)[0] == first[0]
    assert [row.size for row in read_rows(table)] == ['0.5', '40px']

    # An interruption loses the current size only.
    def interrupted(self, runner):
        raise KeyboardInterrupt

    monkeypatch.setattr(ForwardMeter, 'before_test', interrupted)
    with pytest.raises(KeyboardInterrupt):
        sweep([model], [TestSize(factor=2)], table=table)
    assert [row.size for row in read_rows(table)] == ['0.5', '40px']


@pytest.mark.parametrize('change', ['checkpoint', 'config', 'limit'])
def test_rows_of_another_source_are_refused(change, candidate, tmp_path):
    model, table = candidate('mmseg'), tmp_path / 'sweep.csv'
    sweep([model], [TestSize(factor=1)], table=table)
    written = table.read_bytes()
    if change == 'checkpoint':
        content = torch.load(model.checkpoint)
        content['state_dict']['decode_head.conv_seg.bias'] += 1
        torch.save(content, model.checkpoint)
    elif change == 'config':
        model.cfg.model.data_preprocessor.std = [30.0] * 3
    with pytest.raises(ValueError, match="has rows of 'model' from another config, checkpoint"):
        sweep([model], [TestSize(factor=1)], table=table, limit=3 if change == 'limit' else None)
    assert table.read_bytes() == written


def test_several_models_and_the_plot_of_the_table(candidate, tmp_path):
    models = [candidate('mmseg', 'first'), candidate('mmpretrain', 'second')]
    table = tmp_path / 'sweep.csv'
    rows = sweep(models, [TestSize(factor=1), TestSize(factor=1.5)], table=table)
    assert [(row.model, row.size) for row in rows] == [
        (name, size) for name in ('first', 'second') for size in ('1', '1.5')
    ]
    assert main_metric(rows) == 'mIoU'
    for checkpoint in tmp_path.glob('*.pth'):
        checkpoint.unlink()
    draw_sweep(table, tmp_path / 'one.png')
    with table.open() as file:
        records = list(csv.DictReader(file))
    records[0]['mIoU'] = '77'
    with table.open('w') as file:
        writer = csv.DictWriter(file, records[0])
        writer.writeheader()
        writer.writerows(records)
    draw_sweep(table, tmp_path / 'other.png')
    assert (tmp_path / 'one.png').read_bytes() != (tmp_path / 'other.png').read_bytes()
    with pytest.raises(ValueError, match='metric must be a numeric column'):
        draw_sweep(table, tmp_path / 'none.png', metric='AP')
    with pytest.raises(ValueError, match='different names'):
        sweep([models[0]] * 2, [TestSize(factor=1)], table=table)


def test_command_line(trained, call, refused, tmp_path, capsys):
    path, checkpoint = trained('mmseg')
    out = tmp_path / 'out/sweep.csv'
    call(
        'resolution_sweep',
        '--models',
        f'tiny={path}:{checkpoint}',
        '--sizes',
        '0.5',
        '48px',
        '--out',
        out,
    )
    assert out.with_suffix('.png').is_file()
    printed = capsys.readouterr().out
    assert 'tiny' in printed and 'mIoU' in printed and '48px' in printed
    out.with_suffix('.png').unlink()
    call('resolution_sweep', '--out', out)
    assert out.with_suffix('.png').is_file()
    line = refused(
        'resolution_sweep', '--models', f'tiny={path}:{tmp_path / "none.pth"}', '--out', out
    )
    assert 'there is no file' in line


# -- the pipeline
# --------------------------------------------------------------------------------------------------

LOAD, PACK = dict(type='LoadImageFromFile'), dict(type='PackInputs')


def scaled(steps, size):
    cfg = Config(dict(test_dataloader=dict(dataset=dict(pipeline=[LOAD, *steps, PACK]))))
    scale_test_images(cfg, TestSize.parse(size))
    return [dict(step) for step in cfg.test_dataloader.dataset.pipeline[1:-1]]


RESIZE = dict(type='Resize', scale=(1333, 800), keep_ratio=True)
CROP = [dict(type='ResizeEdge', scale=256, edge='short'), dict(type='CenterCrop', crop_size=224)]


@pytest.mark.parametrize(
    ('steps', 'size', 'expected'),
    [
        ([RESIZE], '0.5', [{**RESIZE, 'scale': (666, 400)}]),
        ([RESIZE], '1', [RESIZE]),
        ([RESIZE], '1200px', [{**RESIZE, 'scale': (2000, 1200)}]),
        (
            [dict(type='mmdet.Resize', scale_factor=0.5)],
            '3',
            [dict(type='mmdet.Resize', scale_factor=1.5)],
        ),
        (
            CROP,
            '2',
            [
                dict(type='ResizeEdge', scale=512, edge='short'),
                dict(type='CenterCrop', crop_size=448),
            ],
        ),
        (
            CROP,
            '112px',
            [
                dict(type='ResizeEdge', scale=128, edge='short'),
                dict(type='CenterCrop', crop_size=112),
            ],
        ),
        (
            [RESIZE, dict(type='Pad', size_divisor=32)],
            '1',
            [RESIZE, dict(type='Pad', size_divisor=32)],
        ),
        ([], '1', []),
        ([], '2', [dict(type='mmcv.Resize', keep_ratio=False, scale_factor=2.0)]),
        ([], '64px', [dict(type='mmcv.Resize', keep_ratio=True, scale=(1_000_000, 64))]),
    ],
    ids=str,
)
def test_pipeline_steps_are_scaled(steps, size, expected):
    assert scaled(steps, size) == [dict(step) for step in expected]


@pytest.mark.parametrize(
    ('steps', 'size', 'message'),
    [
        ([dict(type='RandomCrop', crop_size=3)], '1', "step 'RandomCrop' cannot be scaled"),
        ([dict(type='TestTimeAug', transforms=[])], '2', "step 'TestTimeAug'"),
        ([dict(type='LoadAnnotations'), RESIZE], '2', "must load annotations after 'Resize'"),
        ([dict(type='Resize', scale_factor=2.0)], '64px', 'size must be a factor'),
    ],
)
def test_other_pipelines_are_refused(steps, size, message):
    with pytest.raises(ValueError, match=message):
        scaled(steps, size)


def test_pipelines_without_images_are_refused():
    cfg = Config(dict(test_dataloader=dict(dataset=dict(pipeline=[PACK]))))
    with pytest.raises(ValueError, match='loads no image'):
        scale_test_images(cfg, TestSize(factor=2))
    with pytest.raises(ValueError, match='has no pipeline'):
        scale_test_images(
            Config(dict(test_dataloader=dict(dataset=dict(type='Pictures')))), TestSize(factor=2)
        )


def test_pipelines_of_wrapped_data_sets_are_scaled():
    inner = [dict(pipeline=[LOAD, RESIZE]), dict(dataset=dict(pipeline=[LOAD, RESIZE]))]
    cfg = Config(dict(test_dataloader=dict(dataset=dict(type='ConcatDataset', datasets=inner))))
    scale_test_images(cfg, TestSize(factor=2))
    assert str(cfg.test_dataloader).count('(2666, 1600)') == 2


@pytest.mark.parametrize('text', ['', '0', '-1', '640', 'px', '1.5px', '0px', 'big'])
def test_wrong_sizes_are_refused(text):
    if text == '640':
        assert TestSize.parse(text) == TestSize(factor=640)
        return
    with pytest.raises(ValueError, match='size must be'):
        TestSize.parse(text)


def test_a_data_set_that_decodes_its_images_needs_no_loading_step():
    cfg = Config(
        dict(test_dataloader=dict(dataset=dict(pipeline=[dict(type='Resize', scale=(8, 8)), PACK])))
    )
    scale_test_images(cfg, TestSize(factor=2))
    assert cfg.test_dataloader.dataset.pipeline[0].scale == (16, 16)
