"""Shards of a folder: their division, and results equal to those of one process."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from filelock import FileLock
from folder_runs import MODELS, run, snapshot, write_images
from hypothesis import given
from hypothesis import strategies as st
from local_models import BlockDetector, LocalSegmentor

from cpvt_backbones.inference import folders


@given(pixels=st.lists(st.integers(1, 10**9), max_size=30), count=st.integers(1, 8))
def test_shards_divide_the_images_by_their_pixels(pixels, count):
    images = [Path(str(index)) for index in range(len(pixels))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(folders, 'image_size', lambda image: (pixels[int(image.name)], 1))
        shards = [folders._divide(images, index, count) for index in range(count)]
    assert sorted(sum(shards, [])) == list(range(len(pixels)))
    assert all(shard == sorted(shard) for shard in shards)
    loads = [sum(pixels[index] for index in shard) for shard in shards]
    assert max(loads) - min(loads) <= max(pixels, default=0)


@pytest.fixture
def inputs(tmp_path):
    """Images of two sizes, two of one name, and one that cannot be read."""
    write_images(tmp_path / 'images')
    write_images(tmp_path / 'more', count=2)
    (tmp_path / 'images/3.jpg').write_bytes(b'no image')
    return [tmp_path / 'images', tmp_path / 'more']


@pytest.mark.parametrize('model', MODELS)
def test_merged_shards_are_one_run(model, inputs, tmp_path):
    run(model(), inputs, tmp_path / 'one')
    expected = snapshot(tmp_path / 'one')
    found = [run(model(), inputs, tmp_path / 'out', shard=(index, 3)) for index in (2, 0, 1)]
    assert (
        sum(summary.predicted for summary in found) == 8
        and min(summary.predicted for summary in found) >= 2
    )
    assert sum(len(summary.failed) for summary in found) == 1
    assert not (tmp_path / 'out/predictions.json').exists()
    last = model()
    merged = run(last, inputs, tmp_path / 'out', merge=True)
    assert merged.found == 8 and len(merged.failed) == 1 and not last.forwards
    assert snapshot(tmp_path / 'out') == expected
    # -- the folder is now an ordinary one: shards go on from it, and one process does
    write_images(tmp_path / 'more', count=1, first=7)
    assert (
        sum(run(model(), inputs, tmp_path / 'out', shard=(index, 2)).predicted for index in (0, 1))
        == 1
    )
    run(model(), inputs, tmp_path / 'out', merge=True)
    again = run(model(), inputs, tmp_path / 'one')
    assert again.predicted == 1 and snapshot(tmp_path / 'out') == snapshot(tmp_path / 'one')


def test_a_shard_goes_on_where_it_stopped(inputs, tmp_path):
    run(LocalSegmentor(), inputs, tmp_path / 'one')
    out = tmp_path / 'out'
    first = run(LocalSegmentor(), inputs, out, shard=(0, 2))
    records = out / 'records.jsonl.0-of-2'
    lines = records.read_bytes().splitlines(keepends=True)
    records.write_bytes(b''.join(lines[:2]) + lines[2][:20])  # as a kill leaves it
    again = run(LocalSegmentor(), inputs, out, shard=(0, 2))
    assert (again.found, again.predicted) == (2, first.predicted - 2)
    shutil.copy(records, out / 'records.jsonl.0-of-2.damaged')
    # What shard 1 lacks is predicted when merging.
    merged = run(LocalSegmentor(), inputs, out, merge=True)
    assert merged.found == first.predicted and merged.predicted == 8 - first.predicted
    expected = {
        name: content for name, content in snapshot(out).items() if not name.endswith('.damaged')
    }
    assert {
        key: value for key, value in expected.items() if not key.startswith('.lock')
    } == snapshot(tmp_path / 'one')


def test_refusals(inputs, tmp_path):
    out = tmp_path / 'out'
    run(BlockDetector(), inputs, out, shard=(0, 2))
    for options, words in (
        (dict(), r'has predictions of 2 shards, .*--merge'),
        (dict(shard=(0, 3)), 'has predictions of 2 shards'),
        (dict(shard=(2, 2)), r'shard must be \(i, n\) with 0 <= i < n, .* got \(2, 2\)'),
        (dict(shard=(0, 2), overwrite=True), 'without overwrite'),
        (dict(shard=(0, 2), score_thr=0.5), 'score_thr was 0.3, is 0.5'),
    ):
        with pytest.raises(ValueError, match=words):
            run(BlockDetector(), inputs, out, **options)
    with pytest.raises(ValueError, match='has predictions of 2 shards, of these images or others'):
        run(BlockDetector(), inputs[:1], out, shard=(1, 2))
    with FileLock(out / '.lock.0-of-2'):
        for options in (dict(shard=(0, 2)), dict(merge=True)):
            with pytest.raises(ValueError, match='another process is writing'):
                run(BlockDetector(), inputs, out, **options)
        run(BlockDetector(), inputs, out, shard=(1, 2))
    assert len(run(BlockDetector(), inputs, out, merge=True).failed) == 1
    assert 'shards' not in json.loads((out / 'run.json').read_text())
    run(BlockDetector(), inputs, out, shard=(0, 2))
    run(BlockDetector(), inputs, out, overwrite=True)
    assert not list(out.glob('records.jsonl.*'))


def test_shards_and_plain_runs_exclude_each_other(inputs, tmp_path):
    out = tmp_path / 'out'
    run(BlockDetector(), inputs, out, shard=(0, 2))
    with FileLock(out / '.lock.0-of-2'):
        before = snapshot(out)
        for options in (dict(), dict(overwrite=True), dict(merge=True)):
            with pytest.raises(ValueError, match='another process is writing'):
                run(BlockDetector(), inputs, out, **options)
        assert snapshot(out) == before


def test_a_shard_waits_for_the_folder_a_short_time(inputs, tmp_path, monkeypatch):
    monkeypatch.setattr(folders, 'START_SECONDS', 0.1)
    (tmp_path / 'out').mkdir()
    with (
        FileLock(tmp_path / 'out' / '.lock'),
        pytest.raises(ValueError, match='another process is writing'),
    ):
        run(BlockDetector(), inputs, tmp_path / 'out', shard=(0, 2))
    assert run(BlockDetector(), inputs, tmp_path / 'out', shard=(0, 2)).predicted


def test_an_array_job_of_more_shards_than_images(tmp_path):
    images = write_images(tmp_path / 'images', count=2)
    found = [
        run(BlockDetector(), images, tmp_path / 'out', shard=(index, 4)).predicted
        for index in range(4)
    ]
    assert sorted(found) == [0, 0, 1, 1]
    assert np.isin([0, 1], found).all()
    assert run(BlockDetector(), images, tmp_path / 'out', merge=True).found == 2
