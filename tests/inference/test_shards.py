"""Shards of a folder: their division, and results equal to those of one process."""

import json
import os
from pathlib import Path

import pytest
from filelock import FileLock
from folder_runs import MODELS, read, run, snapshot, write_images
from local_models import BlockDetector
from PIL import Image

from cpvt_backbones.inference import find_images, merge_shards


def test_shards_divide_the_images_by_their_pixels(tmp_path):
    """Neither every third image nor every third of the list would have as many pixels."""
    images = tmp_path / 'images'
    images.mkdir()
    sides = [90, 80, 10, 85, 12, 14, 10, 9, 8]
    for number, side in enumerate(sides):
        Image.new('RGB', (side, side)).save(images / f'{number}.png')
    done = []
    for index in range(3):
        run(BlockDetector(), images, tmp_path / 'out', shard=(index, 3))
        done.append(read(tmp_path / f'out/shard-{index}-of-3', 'images.json')['images'])
    assert sorted(image['width'] for shard in done for image in shard) == sorted(sides)
    loads = [sum(image['width'] * image['height'] for image in shard) for shard in done]
    assert max(loads) - min(loads) <= max(sides) ** 2


@pytest.fixture
def inputs(tmp_path):
    """Images of two sizes, two of one name, and one that cannot be read."""
    write_images(tmp_path / 'images')
    write_images(tmp_path / 'more', count=2)
    (tmp_path / 'images/3.jpg').write_bytes(b'no image')
    return [tmp_path / 'images', tmp_path / 'more']


@pytest.mark.parametrize('model', MODELS)
def test_merged_shards_are_one_run(model, inputs, tmp_path):
    one, out = tmp_path / 'one', tmp_path / 'out'
    run(model(), inputs, one)
    found = [run(model(), inputs, out, shard=(index, 3)) for index in (2, 0, 1)]
    assert sum(summary.predicted for summary in found) == 8
    assert min(summary.predicted for summary in found) >= 2
    assert not (out / 'predictions.json').exists()
    for _ in range(2):
        merged = merge_shards(find_images(inputs), out)
        assert (merged.predicted, merged.found, len(merged.failed)) == (0, 8, 1)
        for name in ('images.json', 'failed.json'):
            assert read(out, name) == read(one, name)
        entries, expected = read(out, 'predictions.json'), read(one, 'predictions.json')
        for entry, wanted in zip(entries, expected, strict=True):
            if 'seg_map' in entry:
                written = [out / entry.pop('seg_map'), one / wanted.pop('seg_map')]
                assert written[0].read_bytes() == written[1].read_bytes()
            assert entry == wanted


def test_shards_and_merge_may_spell_the_paths_differently(inputs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for index in range(2):
        run(BlockDetector(), [Path('images'), Path('more')], tmp_path / 'out', shard=(index, 2))
    merged = merge_shards(find_images(inputs), tmp_path / 'out')
    assert (merged.found, len(merged.failed)) == (8, 1)
    names = [image['file_name'] for image in read(tmp_path / 'out', 'images.json')['images']]
    assert [os.path.abspath(name) for name in names] == [
        str(image) for image in find_images(inputs) if image.name != '3.jpg'
    ]


@pytest.mark.parametrize('turned', ['images', 'categories'])
def test_shards_with_other_ids_are_not_merged(turned, tmp_path):
    images = write_images(tmp_path / 'images', count=4)
    content = dict(
        images=[dict(id=number, file_name=f'{number}.png') for number in range(4)],
        categories=[dict(id=number, name=name) for number, name in enumerate('abcd')],
    )
    for index in range(2):
        (tmp_path / 'ann.json').write_text(json.dumps(content))
        run(BlockDetector(), images, tmp_path / 'out', shard=(index, 2), ann=tmp_path / 'ann.json')
        for place, entry in enumerate(reversed(content[turned])):
            entry['id'] = place
    with pytest.raises(ValueError, match='with the same ann'):
        merge_shards(find_images(images), tmp_path / 'out')


@pytest.mark.parametrize(
    ('file', 'old', 'new'),
    [
        ('predictions.json', ']', ''),
        ('predictions.json', '"image_id": 1', '"image_id": 99'),
        ('images.json', '"file_name": "', '"file_name": "other'),
        ('run.json', '{', ''),
    ],
)
def test_a_damaged_shard_is_named(file, old, new, tmp_path):
    images = write_images(tmp_path / 'images', count=2)
    out = tmp_path / 'out'
    run(BlockDetector(), images, out, shard=(0, 1), score_thr=0)
    damaged = out / 'shard-0-of-1' / file
    damaged.write_text(damaged.read_text().replace(old, new))
    with pytest.raises(ValueError, match='shard-0-of-1.* damaged'):
        merge_shards(find_images(images), out)


def test_a_shard_that_is_killed_when_it_is_predicted_again_has_not_ended(tmp_path):
    class Killed(BlockDetector):
        def predict(self, images):
            raise KeyboardInterrupt

    images, out = write_images(tmp_path / 'images', count=2), tmp_path / 'out'
    run(BlockDetector(), images, out, shard=(0, 1))
    os.utime(images / '1.png', (1, 1))
    with pytest.raises(KeyboardInterrupt):
        run(Killed(), images, out, shard=(0, 1))
    with pytest.raises(ValueError, match='shard 0 of 1 in .* has not ended; start it again'):
        merge_shards(find_images(images), out)
    assert run(BlockDetector(), images, out, shard=(0, 1)).predicted == 1
    assert merge_shards(find_images(images), out).found == 2


def test_more_shards_than_images(tmp_path):
    images = write_images(tmp_path / 'images', count=2)
    found = [
        run(BlockDetector(), images, tmp_path / 'out', shard=(index, 4)).predicted
        for index in range(4)
    ]
    assert sorted(found) == [0, 0, 1, 1]
    assert merge_shards(find_images(images), tmp_path / 'out').found == 2


def test_outputs_of_shards_are_no_inputs(tmp_path):
    out = write_images(tmp_path / 'images') / 'out'
    for index in (0, 1):
        run(BlockDetector(), str(tmp_path / '**/*.*g'), out, shard=(index, 2))
    merged = merge_shards(find_images(str(tmp_path / '**/*.*g')), out)
    assert merged.found == 6 and len(merged.skipped) == 6


def test_what_does_not_belong_together_is_refused(inputs, tmp_path):
    out, images = tmp_path / 'out', find_images(inputs)

    def refused(words, call, *arguments, **options):
        with pytest.raises(ValueError, match=words):
            call(*arguments, **options)

    run(BlockDetector(), inputs, out, shard=(0, 2))
    refused('of no shard; predict them first', merge_shards, images, tmp_path / 'none')
    refused('shard 1 of 2 in .* has not ended; start it again', merge_shards, images, out)
    shard = dict(shard=(0, 2))
    refused("images was '9 images", run, BlockDetector(), inputs[:1], out, **shard)
    refused('score_thr was 0.3, is 0.5', run, BlockDetector(), inputs, out, **shard, score_thr=0.5)
    refused(r'shard must be \(i, n\)', run, BlockDetector(), inputs, out, shard=(2, 2))
    run(BlockDetector(), inputs, out, shard=(1, 2), score_thr=0.5)
    refused('shard-1-of-2.*score_thr was 0.5, is 0.3', merge_shards, images, out)
    run(BlockDetector(), inputs, out, shard=(1, 2), overwrite=True)
    refused('images was', merge_shards, images[:-1], out)
    with FileLock(out / 'shard-1-of-2/.lock'):
        before = snapshot(out)
        busy = 'another process is writing to .*shard-1-of-2'
        refused(busy, merge_shards, images, out)
        refused(busy, run, BlockDetector(), inputs, out, shard=(1, 2), overwrite=True)
        assert snapshot(out) == before
        run(BlockDetector(), inputs, out, **shard)
    run(BlockDetector(), inputs, out, shard=(2, 3))
    refused('of 2 and 3 shards', merge_shards, images, out)


def test_a_merge_replaces_its_own_results_only(inputs, tmp_path):
    out, images = tmp_path / 'out', find_images(inputs)
    for index in (0, 1):
        run(BlockDetector(), inputs, out, shard=(index, 2))
    (out / 'predictions.json').write_text('mine')
    with pytest.raises(ValueError, match='has files that no earlier run wrote'):
        merge_shards(images, out)
    (out / 'predictions.json').unlink()
    merge_shards(images, out)
    assert json.loads((out / 'run.json').read_text())['shards'] == 2
    with pytest.raises(ValueError, match='shards was 2, is None'):
        run(BlockDetector(), inputs, out)
