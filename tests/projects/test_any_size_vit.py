"""Adapting a ViT to many sizes: its commands run small, and its figures follow from its CSVs."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

pytest.importorskip('sklearn')
pytest.importorskip('mmpretrain')

from any_size_vit import adapt, run, segmentation, study
from any_size_vit.reasons import read_reasons
from any_size_vit.report import interval, read_results, values, wilson, write_report
from any_size_vit.segmentation import miou, overlaps, pack, read_segmentation, resampled, unpack
from any_size_vit.student import POSITIONS, TABLE, Source
from positional_encoding.runs import read_records
from sklearn.metrics import jaccard_score
from tiny import COLUMN

from cpvt_backbones import CPVT
from cpvt_backbones.checkpoints import read_checkpoint

ROOT = Path(__file__).resolve().parents[2]
MODEL = dict(arch=COLUMN, img_size=32, patch_size=8, pre_norm=True, activation='quick_gelu')


@pytest.fixture
def source():
    """A pretrained model: random weights, with timm's names."""
    state = CPVT(**MODEL, position=TABLE).state_dict()
    weights = {name.replace('pos_embed.0', 'pos_embed'): value for name, value in state.items()}
    weights['pos_embed'] = torch.randn_like(weights['pos_embed'])
    return Source(MODEL, weights, (0.5, 0.5, 0.5), (0.25, 0.25, 0.25))


# -- commands
# --------------------------------------------------------------------------------------------------


@pytest.fixture
def call(source, image_folders, monkeypatch, tmp_path):
    """The command line, with a tiny model beside ``data``; ``call(stage, work, *words)``."""
    small = dict(TEACHER_SIDE=32, GALLERY=1, QUERIES=2, TEST_SIZES={32: 1, 48: 2})
    for name, value in small.items():
        monkeypatch.setattr(study, name, value)
    monkeypatch.setattr(run, 'MODEL', MODEL)
    monkeypatch.setattr(run, 'read_clip', lambda file: source.weights)
    monkeypatch.setattr(adapt, 'SAVE_EVERY', 0.0)
    monkeypatch.setattr(segmentation, 'STEPS', 5)
    monkeypatch.setattr(run.explain, '__defaults__', ((32, 48),))
    monkeypatch.setattr(run.segment, '__defaults__', ((60, 80),))  # the last patches are padded
    monkeypatch.chdir(tmp_path)
    plan = '--data data --images 4 --sizes 32 48 --single 32 --steps 4'
    runs = '--runs table:untrained peg:mixed'

    def call(stage, work, *words):
        arguments = [stage, '--work-dir', work, *words]
        if stage != 'report':
            arguments += ['--clip', 'clip.onnx', *plan.split(), *runs.split()]
        run.main(arguments)

    return call


def rows_of(folder):
    """Rows of the finished runs, without their times."""
    rows = [row for record in read_records(Path(folder)) for row in record['rows']]
    return [{key: row[key] for key in row if not key.endswith('_s')} for row in rows]


def test_the_commands_run_small_and_an_interrupted_study_has_the_same_rows(
    call, scenes, interrupted
):
    call('study', 'whole')
    with interrupted(adapt, 'prepare', 3):
        call('study', 'work')
    assert len(read_records(Path('work'))) == 1 and Path('work/peg_mixed_seed-0').is_dir()
    call('study', 'work')
    rows = rows_of('work')
    assert rows == rows_of('whole') and [row['size'] for row in rows] == [32, 48, 32, 48]
    # A model that is not adapted is its teacher at the teacher's size.
    assert set(rows[2]['cosines'].split()) == {'1000'} and rows[0]['loss'] > 0

    call('explain', 'work')
    for row in read_reasons(Path('work')):
        assert row['processor'] and row['commit'] and row['precision'] == 'fp32'
        assert row['place'] <= 1 and 0 < row['distance'] < 2**0.5 and 0 < row['entropy'] <= 1

    call('segment', 'work', '--camvid', str(scenes))
    dense = read_segmentation(Path('work'))
    assert [(row['variant'], row['size'], row['images']) for row in dense] == [
        (variant, size, 2) for variant in ('peg', 'table') for size in (0.5, 1, 1.5, 2)
    ]
    file = Path('work/peg_mixed_seed-0/segmentation.json')
    finished = file.read_text()
    file.write_text(json.dumps(json.loads(finished)[:2]))  # interrupted after two sizes
    call('segment', 'work', '--camvid', str(scenes))
    assert file.read_text() == finished

    # On the study's own data the rows are its own, up to the teacher's size.
    call('probe', 'work', '--other', 'data')
    for row, own in zip(rows_of(f'work/{study.OTHER}'), rows[::2], strict=True):
        assert row.pop('data') == 'data' and row == {name: own[name] for name in row}

    call('report', 'work')
    text = Path('work/report.md').read_text()
    for part in ('PEG 0-5', '### On data\n', '**Why**', 'Minus that of the table'):
        assert part in text
    assert len(list(Path('work').glob('any_size_vit*.png'))) == 2


def test_a_command_adapts_ones_own_model(source, image_folders, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    weights, position = tmp_path / 'weights.pth', [TABLE, dict(type='PEG', after_blocks=[0])]
    torch.save(dict(source.weights), weights)
    backbone = dict(type='CPVT', position=position, **MODEL)
    (tmp_path / 'own.py').write_text(
        f"default_scope = 'mmpretrain'\nmodel = dict(backbone={backbone})\n"
        'data_preprocessor = dict(mean=[127.5] * 3, std=[63.75] * 3)'
    )
    words = f'adapt --config own.py --weights {weights} --images data/train --sizes 32 48 --steps 3'
    for _ in range(2):  # the second one continues
        run.main([*words.split(), '--work-dir', 'work', '--out', 'adapted.pth'])
    model = CPVT(**MODEL, position=position)
    model.load_state_dict(read_checkpoint(tmp_path / 'adapted.pth')['state_dict'])
    assert not torch.equal(model.pos_embed.get_parameter('0'), source.weights['pos_embed'])
    torch.save(dict(source.weights, cls_token=2 * source.weights['cls_token']), weights)
    with pytest.raises(ValueError, match='was begun with'):
        run.main([*words.split(), '--work-dir', 'work', '--out', 'other.pth'])


# -- models and measures
# --------------------------------------------------------------------------------------------------


def test_a_student_starts_as_its_teacher_or_without_a_table_with_its_mean(source):
    table = source.weights['pos_embed'].clone()
    table[:, 1:] = table[:, 1:].mean(dim=1, keepdim=True)
    constant = replace(source, weights={**source.weights, 'pos_embed': table})
    for teacher, variants in ((source, ('table', 'table+peg')), (constant, ('none', 'peg'))):
        for height, width in ((32, 32), (24, 56)):
            images = torch.randn(2, 3, height, width)
            expected = teacher.build(TABLE).eval()(images)[0]
            for variant in variants:
                found = source.build(POSITIONS[variant]).eval()(images)[0]
                torch.testing.assert_close(found, expected)


def test_mean_iou_is_that_of_a_confusion_matrix():
    rng = np.random.default_rng(0)
    images = [
        [torch.from_numpy(rng.integers(0, high, (1, 9, 7))) for high in (11, 12)] for _ in range(8)
    ]
    blocks = unpack(pack([overlaps(*pair) for pair in images]))
    assert blocks.shape == (2, 2, 11)
    found, labels = (torch.cat(part).flatten().numpy() for part in zip(*images, strict=True))
    expected = jaccard_score(labels[labels < 11], found[labels < 11], average='macro')
    assert miou(blocks) == pytest.approx(100 * expected)
    assert resampled([blocks], blocks) == (0, 0)
    low, high = resampled([blocks + [[[9]], [[9]]]], blocks)
    assert 0 < low <= high


def test_intervals_are_wilsons_of_a_share_and_never_empty_of_a_difference():
    stats = pytest.importorskip('scipy.stats')
    for hits in (0, 7, 25):
        sample = np.array([[100.0] * hits + [0.0] * (25 - hits)])
        expected = stats.binomtest(hits, 25).proportion_ci(method='wilson')
        # 1.96 stands for 1.95996; the bounds are of the order of 100.
        bounds = 100 * expected.low, 100 * expected.high
        np.testing.assert_allclose(wilson(sample), bounds, atol=1e-2)
    assert interval(np.zeros((1, 25)), pairs=True) == pytest.approx(1.96 * (1e4 / 26 / 27) ** 0.5)
    same, apart = np.zeros((2, 25)), np.repeat([[0.0], [4.0]], 25, axis=1)
    assert interval(same) == 0
    assert interval(apart) == pytest.approx(1.96 * (8 / 2) ** 0.5)


# -- pages
# --------------------------------------------------------------------------------------------------


def test_the_page_is_reproduced_from_its_csv_files(tmp_path):
    shutil.copytree(ROOT / 'docs/evidence', tmp_path / 'evidence')
    write_report(tmp_path / 'nowhere', tmp_path / 'evidence')
    page = 'evidence/clip.md'
    assert (tmp_path / page).read_text() == (ROOT / 'docs' / page).read_text()


def test_what_to_choose_has_the_figures_of_the_csv():
    """Small images have enlargement as baseline; RoPE and PEG are compared on one processor."""
    folder = ROOT / 'docs/evidence'
    table = read_results(folder / 'any_size_vit_other.csv')

    def percent(variant, training, size):
        (sample,) = values(table, 'neighbours', variant, training)[size]
        return f'{sample.mean():.1f} %'

    enlarged, adapted = percent('table', 'untrained', 224), percent('table', 'mixed', 64)
    page = ' '.join((ROOT / 'docs/evidence.md').read_text().split())
    assert f'at 64 px: {enlarged} enlarged, {adapted} adapted (one seed)' in page
    before = percent('table', 'untrained', 64)
    told = (
        f'On 100 other classes at 64 px, accuracy is {adapted} after adapting and {before} before'
    )
    assert f'{told} (one seed)' in page
    own = read_results(folder / 'any_size_vit.csv')
    table_cosine, *others = (
        values(own, 'cosines', variant, 'mixed')[224].mean() for variant in ('table', 'peg', 'rope')
    )
    lower = [table_cosine - other for other in others]
    text = '(cosine: {:.0f} points over PEG, {:.0f} over RoPE)'
    assert text.format(*lower) in page
    clip = ' '.join((folder / 'clip.md').read_text().split())
    rope, peg = (percent(variant, 'mixed', 224) for variant in ('rope', 'peg'))
    assert f'RoPE finds {rope} and PEG {peg} at 224 px' in clip
    runs = pd.read_csv(folder / 'any_size_vit_other_runs.csv')
    compared = runs[runs['variant'].isin(['peg', 'rope']) & runs['training'].eq('mixed')]
    assert len(compared) == 2 and compared['processor'].nunique() == 1
