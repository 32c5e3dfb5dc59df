"""Damaged records and outputs, folders that cannot be written to, and predictions that cannot be
written.
"""

import json
import resource
from pathlib import Path

import numpy as np
import pytest
import torch
from folder_runs import MODELS, read, run, snapshot, write_images
from local_models import Brightness, LocalSegmentor
from PIL import Image

from cpvt_backbones.inference import Inferencer


@pytest.fixture
def done(folder, out):
    """The output folder of a run on ``folder``."""
    run(LocalSegmentor(), folder, out)
    return out


# -- records and settings
# --------------------------------------------------------------------------------------------------


def spoil_line(out, place, spoil):
    lines = (out / 'records.jsonl').read_bytes().splitlines(keepends=True)
    lines[place] = spoil(lines[place])
    (out / 'records.jsonl').write_bytes(b''.join(lines))


def change(line, **values):
    return json.dumps({**json.loads(line), **values}).encode() + b'\n'


LINES = {
    'cut short': (-1, lambda line: line[:-20]),
    'without its end': (-1, lambda line: line[:-1]),
    'no text': (2, lambda line: b'\xff' + line[1:]),
    'no record': (2, lambda _: b'{"key": 1}\n'),
    'outputs in another folder': (2, lambda line: change(line, name='../../victim')),
}


@pytest.mark.parametrize('name', LINES)
def test_the_image_of_a_line_that_does_not_parse_is_predicted_again(folder, done, name):
    before = snapshot(done)
    spoil_line(done, *LINES[name])
    summary = run(LocalSegmentor(), folder, done)
    assert (summary.predicted, summary.found) == (1, 5)
    assert snapshot(done) == before
    assert run(LocalSegmentor(), folder, done).found == 6


@pytest.mark.parametrize(
    ('content', 'fault'),
    [(None, "'.*/run.json' is missing"), ('{"model"', "'.*/run.json' is damaged: it is not JSON")],
)
def test_predictions_of_unknown_settings_are_refused(folder, done, content, fault):
    if content is None:
        (done / 'run.json').unlink()
    else:
        (done / 'run.json').write_text(content)
    before = (done / 'records.jsonl').read_bytes()
    with pytest.raises(ValueError, match=rf'^out_dir: .* {fault}.*\(--overwrite\)$'):
        run(LocalSegmentor(), folder, done)
    assert (done / 'records.jsonl').read_bytes() == before
    assert run(LocalSegmentor(), folder, done, overwrite=True).predicted == 6


def test_records_of_another_run_are_refused(folder, done, tmp_path):
    other = LocalSegmentor()
    other.fingerprint = 'other'
    run(other, folder, tmp_path / 'other')
    (tmp_path / 'other/records.jsonl').replace(done / 'records.jsonl')
    before = snapshot(done)
    with pytest.raises(ValueError, match=r'has records of another run; .*\(--overwrite\)$'):
        run(LocalSegmentor(), folder, done)
    assert snapshot(done) == before


def test_overwrite_works_whatever_is_there(folder, done):
    whole = snapshot(done)
    (done / 'records.jsonl').write_bytes(b'\xff')
    (done / 'run.json').unlink()
    (done / 'predictions.json').write_text('{')
    (done / 'vis' / '0.jpg').write_bytes(b'')
    assert run(LocalSegmentor(), folder, done, overwrite=True).predicted == 6
    assert snapshot(done) == whole


def test_overwrite_deletes_only_what_a_run_wrote(folder, done):
    own = ['pred/mine.txt', 'vis/holiday.jpg', 'vis/deep/1.jpg', 'notes.txt']
    for name in own:
        (done / name).parent.mkdir(exist_ok=True)
        (done / name).write_text(name)
    run(LocalSegmentor(), folder / '0.png', done, overwrite=True)
    written = snapshot(done)
    assert [written.pop(name).decode() for name in own] == own
    assert {'pred/0.png', 'vis/0.jpg'} < set(written)
    assert not any(name.endswith('1.png') for name in written)


def test_a_record_names_no_file_outside_the_two_folders(folder, out, tmp_path):
    run(LocalSegmentor(), folder / '0.png', out)
    kept = [tmp_path / 'mine.txt', out / 'vis/deep/mine.txt']
    (out / 'vis/deep').mkdir()
    for file in kept:
        file.write_text('mine')
    record = json.loads((out / 'records.jsonl').read_text())
    outside = ['../mine.txt', 'pred/../../mine.txt', 'vis/deep/mine.txt', 'vis/..']
    record['files'] = dict.fromkeys([*outside, str(tmp_path / 'mine.txt')], 1)
    (out / 'records.jsonl').write_text(json.dumps(record) + '\n')
    run(LocalSegmentor(), folder / '0.png', out, overwrite=True)
    assert all(file.exists() for file in kept)


@pytest.mark.parametrize('overwrite', [False, True])
@pytest.mark.parametrize('name', ['pred/mine.txt', 'vis/0.jpg', 'predictions.json'])
def test_files_that_no_run_wrote_are_refused(name, overwrite, folder, out):
    (out / name).parent.mkdir(parents=True)
    (out / name).write_text('mine')
    with pytest.raises(ValueError, match=f'has files that no earlier run wrote, such as .*{name}'):
        run(LocalSegmentor(), folder, out, overwrite=overwrite)
    assert (out / name).read_text() == 'mine'


def test_inputs_in_the_output_folder_are_named(tmp_path):
    """Also through a link, and also where nothing else is left."""
    folder, out = write_images(tmp_path / 'images', count=2), tmp_path / 'images' / 'out'
    assert run(LocalSegmentor(), folder, out).skipped == []
    (tmp_path / 'link').symlink_to(out)
    again = run(LocalSegmentor(), tmp_path / '**' / '*.*g', tmp_path / 'link')
    assert again.found == 2 and again.predicted == 0
    assert sorted(Path(name).name for name in again.skipped) == ['0.jpg', '0.png', '1.jpg', '1.png']
    with pytest.raises(ValueError, match='all 2 images, .*0.jpg.*, lie in the output folder'):
        run(LocalSegmentor(), out / 'vis', out)


@pytest.mark.parametrize('output', ['pred/2.png', 'vis/2.jpg'])
def test_a_truncated_output_is_written_again(folder, done, output):
    before = snapshot(done)
    (done / output).write_bytes(before[output][:-20])
    assert run(LocalSegmentor(), folder, done).predicted == 1
    assert snapshot(done) == before


def test_outputs_of_vanished_images_are_reported(folder, out):
    assert run(LocalSegmentor(), folder, out).orphaned == []
    (folder / '3.png').unlink()
    (folder / '4.png').write_text('damaged since')
    (out / 'vis' / '3.jpg').unlink()
    summary = run(LocalSegmentor(), folder, out)
    assert list(summary.failed) == [str(folder / '4.png')]
    assert sorted(summary.orphaned) == ['pred/3.png', 'pred/4.png', 'vis/4.jpg']
    maps = {entry['seg_map'] for entry in read(out, 'predictions.json')}
    assert maps == {f'pred/{i}.png' for i in (0, 1, 2, 5)}


# -- predictions that are not finite
# --------------------------------------------------------------------------------------------------

TILES = dict(max_pixels=400, tile_size=20, overlap=4)


class NotFinite:
    """Its output for a dark image is NaN or infinite."""

    def __init__(self, value):
        super().__init__()
        self.value = value

    def logits(self, images):
        logits = super().logits(images)
        logits[torch.tensor([not image.any() for image in images]), 0, 1, 1] = self.value
        return logits

    def predict(self, images):
        outputs = super().predict(images)
        for image, output in zip(images, outputs, strict=True):
            if not image.any():
                output['scores'] = np.array([0.9, self.value])
                if 'boxes' in output:
                    output.update(boxes=np.zeros((2, 4), np.float32), labels=np.zeros(2, int))
        return outputs


@pytest.mark.parametrize('value', [np.nan, np.inf])
@pytest.mark.parametrize('kind', MODELS)
@pytest.mark.parametrize('options', [{}, dict(batch_size=3), TILES], ids=str)
def test_predictions_that_are_not_finite_are_errors_of_their_image(tmp_path, kind, value, options):
    if kind is Brightness and options is TILES:
        pytest.skip('a classifier is not tiled')
    model = type('Model', (NotFinite, kind), {})(value)
    folder = tmp_path / 'images'
    folder.mkdir()
    for i, level in enumerate((200, 0, 200)):
        Image.new('RGB', (24, 24), (level, level, level)).save(folder / f'{i}.png')
    summary = run(model, folder, tmp_path / 'out', inferencer=options, vis=False)
    assert (summary.predicted, list(summary.failed)) == (2, [str(folder / '1.png')])
    assert 'must be finite, got NaN or infinite values' in summary.failed[str(folder / '1.png')]
    for file in ('predictions.json', 'failed.json'):
        json.loads((tmp_path / 'out' / file).read_text(), parse_constant=pytest.fail)


@pytest.mark.parametrize('options', [{}, TILES], ids=['whole', 'tiles'])
def test_an_excluded_class_may_have_minus_infinity(options):
    class Excluding(LocalSegmentor):
        def logits(self, images):
            logits = super().logits(images)
            logits[:, 2] = -np.inf
            return logits

    image = np.full((50, 50, 3), 160, np.uint8)
    prediction, _ = Inferencer(predictor=Excluding(), **options)(image)
    assert set(np.unique(prediction['seg_map'])) <= {1, 3}


# -- folders that cannot be written to
# --------------------------------------------------------------------------------------------------


def test_a_folder_that_cannot_be_written_to_is_named(folder, tmp_path):
    (tmp_path / 'blocked').mkdir()
    (tmp_path / 'blocked' / 'pred').touch()
    for out in ('/dev/null', '/dev/null/out', tmp_path / 'blocked'):
        with pytest.raises(OSError, match=f"^out_dir: '{out}' cannot be written to: [A-Z][a-z ]+$"):
            run(LocalSegmentor(), folder, out)


def test_a_full_disk_is_named_and_the_run_continues_later(folder, out, tmp_path):
    """Simulated by a limit on the size of files."""
    whole = tmp_path / 'whole'
    run(LocalSegmentor(), folder, whole, vis=False)
    size = (whole / 'records.jsonl').stat().st_size
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    for limit in (10, size // 2):
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
        try:
            with pytest.raises(OSError, match='^out_dir: .* written to: File too large$'):
                run(LocalSegmentor(), folder, out, vis=False)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert run(LocalSegmentor(), folder, out, vis=False).predicted < 6
    assert snapshot(out) == snapshot(whole)
