"""Output folders: files, names, and continuing."""

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch
from bad_files import BAD, GOOD, write_folder
from folder_runs import MODELS, read, run, snapshot, write_images
from local_models import BlockDetector, BlockInstances, LocalSegmentor
from PIL import Image

from cpvt_backbones.inference import Inferencer


@pytest.mark.parametrize('model', MODELS)
def test_a_folder_of_everything(model, tmp_path):
    folder = write_folder(tmp_path / 'images')
    summary = run(model(), folder, tmp_path / 'out')
    assert (summary.predicted, summary.found) == (len(GOOD), 0)
    failed = {Path(name).name: reason for name, reason in summary.failed.items()}
    assert failed.keys() == BAD.keys()
    assert all(failed[name].startswith(reason) for name, reason in BAD.items())
    pairs = summary.failed.items()
    expected = [dict(file_name=name, reason=reason) for name, reason in pairs]
    assert read(tmp_path / 'out', 'failed.json') == expected
    listed = read(tmp_path / 'out', 'images.json')['images']
    assert {Path(one['file_name']).name: (one['width'], one['height']) for one in listed} == GOOD
    assert len({one['id'] for one in listed}) == len(GOOD)
    predicted = {entry['image_id'] for entry in read(tmp_path / 'out', 'predictions.json')}
    assert predicted <= {one['id'] for one in listed}
    if model is not BlockDetector:
        assert len(predicted) == len(GOOD)
    # Pictures have the stem of the file.
    pictures = {file.stem for file in (tmp_path / 'out' / 'vis').iterdir()}
    assert pictures == {Path(name).stem for name in GOOD}


@pytest.mark.parametrize('model', [BlockDetector, BlockInstances])
def test_boxes_are_coco_results(model, tmp_path):
    coco = pytest.importorskip('pycocotools.coco')
    run(model(), write_images(tmp_path / 'images'), tmp_path / 'out')
    images = coco.COCO(tmp_path / 'out' / 'images.json')
    results = images.loadRes(str(tmp_path / 'out' / 'predictions.json'))
    for image in images.dataset['images']:
        i = int(Path(image['file_name']).stem)
        (box,) = results.imgToAnns[image['id']]
        assert box['bbox'] == [5, 5, 10 + i, 10] and box['score'] == pytest.approx(0.9)
        assert box['area'] == 10 * (10 + i)
        assert images.cats[box['category_id']]['name'] == 'a'
        if model is BlockInstances:
            assert results.annToMask(box)[5:15, 5 : 15 + i].all()


def test_class_maps_have_16_bits_when_8_are_too_few(tmp_path):
    class Many(LocalSegmentor):
        levels = torch.arange(300) * (255 / 299)

    folder = write_images(tmp_path / 'images', count=1)
    for predictor in (LocalSegmentor(), Many()):
        out = tmp_path / type(predictor).__name__
        run(predictor, folder, out, vis=False)
        (entry,) = read(out, 'predictions.json')
        written = np.asarray(Image.open(out / entry['seg_map']))
        expected, _ = Inferencer(predictor=predictor)(folder / '0.png')
        np.testing.assert_array_equal(written, expected['seg_map'])
        assert written.dtype == (np.uint8 if predictor.levels.numel() < 256 else np.uint16)
    assert written.max() == 299


class Interrupted(LocalSegmentor):
    """Interrupted by the user during a forward call."""

    def __init__(self, after):
        super().__init__()
        self.after = after

    def logits(self, images):
        if len(self.forwards) == self.after:
            raise KeyboardInterrupt
        return super().logits(images)


def test_an_interrupted_run_is_continued(tmp_path):
    folder = write_images(tmp_path / 'images')
    run(LocalSegmentor(), folder, tmp_path / 'whole')
    with pytest.raises(KeyboardInterrupt):
        run(Interrupted(after=2), folder, tmp_path / 'out')
    assert not (tmp_path / 'out' / 'predictions.json').exists()
    again = LocalSegmentor()
    summary = run(again, folder, tmp_path / 'out')
    assert len(again.forwards) == 4
    assert (summary.predicted, summary.found) == (4, 2)
    assert snapshot(tmp_path / 'out') == snapshot(tmp_path / 'whole')
    idle = LocalSegmentor()
    assert run(idle, folder, tmp_path / 'out').found == 6
    assert not idle.forwards


def test_a_killed_run_is_continued(tmp_path):
    """Killed, with an incomplete last line in its records."""
    folder = write_images(tmp_path / 'images')
    script = f"""
    import os, signal, sys
    sys.path.insert(0, {str(Path(__file__).parent)!r})
    from local_models import LocalSegmentor
    from folder_runs import run
    class Killed(LocalSegmentor):
        def logits(self, images):
            if len(self.forwards) == 3:
                os.kill(os.getpid(), signal.SIGKILL)
            return super().logits(images)
    run(Killed(), {str(folder)!r}, {str(tmp_path / 'out')!r})
    """
    process = subprocess.run([sys.executable, '-c', textwrap.dedent(script)], capture_output=True)
    assert process.returncode == -signal.SIGKILL, process.stderr.decode()
    records = tmp_path / 'out' / 'records.jsonl'
    complete = records.read_text() if records.exists() else ''
    assert complete.count('\n') <= 3
    records.write_text(f'{complete}{{"key": "')
    (tmp_path / 'out' / 'pred').mkdir(exist_ok=True)
    (tmp_path / 'out' / 'pred' / '.3.png.0a1b2c3d.part').write_bytes(b'half')
    other = tmp_path / 'out' / '.film.part'
    other.touch()
    again = LocalSegmentor()
    run(again, folder, tmp_path / 'out')
    assert len(again.forwards) == 6 - complete.count('\n')
    run(LocalSegmentor(), folder, tmp_path / 'whole')
    other.unlink()  # of somebody else: kept
    assert snapshot(tmp_path / 'out') == snapshot(tmp_path / 'whole')


def test_changed_images_and_missing_outputs_are_predicted_again(tmp_path):
    folder = write_images(tmp_path / 'images')
    (folder / '7.png').write_text('not yet')
    out = tmp_path / 'out'
    assert list(run(LocalSegmentor(), folder, out).failed) == [str(folder / '7.png')]
    write_images(folder, count=1, first=7)
    os.utime(folder / '1.png', (1, 1))
    (out / 'pred' / '2.png').unlink()
    write_images(folder, count=1, first=9)
    again = LocalSegmentor()
    summary = run(again, folder, out)
    assert (summary.predicted, summary.found, summary.failed) == (4, 4, {})
    assert len(again.forwards) == 4
    assert len(read(out, 'predictions.json')) == len(list((out / 'pred').iterdir())) == 8


def test_other_settings_are_refused(tmp_path):
    folder, out = write_images(tmp_path / 'images'), tmp_path / 'out'
    run(LocalSegmentor(), folder, out)
    before = snapshot(out)
    other = LocalSegmentor()
    other.fingerprint = 'other'
    for predictor, options, words in (
        (other, {}, "model was 'local', is 'other'"),
        (LocalSegmentor(), dict(vis=False), 'vis was True, is False'),
        (LocalSegmentor(), dict(score_thr=0.5), 'score_thr was 0.3, is 0.5'),
    ):
        with pytest.raises(ValueError, match=words):
            run(predictor, folder, out, **options)
    with pytest.raises(ValueError, match=r'scale was None, is \[20, 20\]'):
        run(LocalSegmentor(), folder, out, inferencer=dict(long_side=20))
    reduced = LocalSegmentor()
    reduced.dtype = 'bfloat16'
    with pytest.raises(ValueError, match="dtype was None, is 'bfloat16'"):
        run(reduced, folder, out)
    assert snapshot(out) == before
    run(LocalSegmentor(), folder / '0.png', out, overwrite=True, vis=False)
    assert {name for name in snapshot(out)} == {
        'run.json', 'images.json', 'predictions.json', 'failed.json', 'pred/0.png'
    }  # fmt: skip


def test_inputs_of_one_name_do_not_overwrite_each_other(tmp_path):
    for i, name in enumerate(('a/x.png', 'b/x.png', 'b/x.bmp', 'b/X_2.png', 'c/x.png')):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.new('RGB', (4 + i, 3)).save(tmp_path / name)
    out = tmp_path / 'out'
    run(LocalSegmentor(), [tmp_path / 'b', tmp_path / 'c'], out)
    # Names are kept when other images precede in a later run.
    run(LocalSegmentor(), [tmp_path / name for name in ('a', 'b', 'c', 'a/x.png')], out)
    listed = {image['id']: image for image in read(out, 'images.json')['images']}
    assert len(listed) == 5
    entries = read(out, 'predictions.json')
    assert len({entry['seg_map'].lower() for entry in entries}) == 5
    for entry in entries:
        image = listed[entry['image_id']]
        assert Image.open(out / entry['seg_map']).size == Image.open(image['file_name']).size


def test_one_file_by_two_names_is_one_image(tmp_path, monkeypatch):
    folder = write_images(tmp_path / 'images', count=1)
    monkeypatch.chdir(tmp_path)
    assert run(LocalSegmentor(), [Path('images/0.png'), folder / '0.png'], 'out').predicted == 1
    assert [file.name for file in Path('out/pred').iterdir()] == ['0.png']


def test_arrays_are_refused(tmp_path):
    with pytest.raises(TypeError):
        run(LocalSegmentor(), np.zeros((3, 3), np.uint8), tmp_path / 'out')


class Meddling(LocalSegmentor):
    """Calls a function before each forward call."""

    def __init__(self, meddle):
        super().__init__()
        self.meddle = meddle

    def logits(self, images):
        self.meddle()
        return super().logits(images)


def test_file_changed_during_a_run_is_predicted_again(tmp_path):
    folder = write_images(tmp_path / 'images', count=1)
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(folder / '0.png')

    def rewrite():
        Image.fromarray(np.full((9, 9, 3), 240, np.uint8)).save(folder / '0.png')

    run(Meddling(rewrite), folder, tmp_path / 'out')
    assert run(LocalSegmentor(), folder, tmp_path / 'out').predicted == 1
    assert set(np.unique(np.asarray(Image.open(tmp_path / 'out' / 'pred' / '0.png')))) == {3}


def test_file_deleted_during_a_run_does_not_stop_it(tmp_path):
    folder = write_images(tmp_path / 'images', count=3)
    out = tmp_path / 'out'
    summary = run(Meddling(lambda: (folder / '2.png').unlink(missing_ok=True)), folder, out)
    assert summary.predicted >= 2
    assert (out / 'predictions.json').is_file()


def test_failure_to_draw_does_not_stop_other_images(tmp_path):
    """Class 3 has no colour."""
    folder = tmp_path / 'images'
    folder.mkdir()
    for i, level in enumerate((0, 240, 80)):
        Image.fromarray(np.full((8, 8, 3), level, np.uint8)).save(folder / f'{i}.png')
    predictor = LocalSegmentor()
    predictor.palette = [[0, 0, 0], [255, 0, 0]]
    summary = run(predictor, folder, tmp_path / 'out', vis=True)
    assert summary.predicted == 2
    assert [Path(name).name for name in summary.failed] == ['1.png']
    assert len(read(tmp_path / 'out', 'predictions.json')) == 2


def test_the_longest_file_names_are_cut(tmp_path):
    folder = tmp_path / 'images'
    folder.mkdir()
    for last in 'ab':
        Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(folder / f'{"ä" * 120}{last}.png')
    assert run(LocalSegmentor(), folder, tmp_path / 'out').predicted == 2
    assert len(list((tmp_path / 'out' / 'pred').iterdir())) == 2


def test_own_outputs_are_no_inputs(tmp_path, monkeypatch):
    """A pattern with ** also matches the output folder of an earlier run."""
    monkeypatch.chdir(tmp_path)
    write_images(tmp_path / 'photos', count=2)
    (tmp_path / 'outputs').mkdir()
    write_images(tmp_path / 'outputs' / 'pred_of_mine', count=1, first=5)
    for predictor in (LocalSegmentor(), LocalSegmentor()):
        run(predictor, '**/*.png', 'outputs')
        listed = read(tmp_path / 'outputs', 'images.json')['images']
        names = sorted(Path(image['file_name']).name for image in listed)
        assert names == ['0.png', '1.png', '5.png']
    assert not predictor.forwards


def test_two_processes_do_not_share_a_folder(tmp_path):
    photos = write_images(tmp_path / 'photos', count=3)
    refused = []

    def second():
        with pytest.raises(ValueError, match=r"out_dir: another process is writing to '.*out'"):
            run(LocalSegmentor(), photos, tmp_path / 'out')
        refused.append(1)

    assert run(Meddling(second), photos, tmp_path / 'out').predicted == 3
    assert refused
    assert run(LocalSegmentor(), photos, tmp_path / 'out').found == 3


@pytest.mark.parametrize('threshold', [float('nan'), -0.1, 1.1, True, '0.3'])
def test_invalid_score_thr(tmp_path, threshold):
    photos = write_images(tmp_path / 'photos', count=1)
    words = rf'score_thr must be a number in \[0, 1\], got {threshold!r}'
    with pytest.raises(ValueError, match=words):
        run(BlockDetector(), photos, tmp_path / 'out', score_thr=threshold)
    assert not (tmp_path / 'out').exists()
    with pytest.raises(ValueError, match=words):
        Inferencer(predictor=BlockDetector())(np.zeros((9, 9, 3), np.uint8), score_thr=threshold)


def test_ids_are_those_of_a_coco_json(tmp_path):
    for name, size in (('a/x.png', (40, 30)), ('b/x.png', (20, 30)), ('y.png', (25, 25))):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.new('RGB', size, (0, 0, 255)).save(tmp_path / name)
    files = {70: 'b/x.png', 'seven': 'x.png', 3: 'y.png'}
    names = {90: 'b', 11: 'a', 5: 'c', 1: 'd'}
    content = dict(
        images=[dict(id=id, file_name=name) for id, name in files.items()],
        categories=[dict(id=id, name=name) for id, name in names.items()],
    )
    ann = tmp_path / 'ann.json'
    ann.write_text(json.dumps(content))
    inputs = [tmp_path / 'a', tmp_path / 'b', tmp_path / 'y.png']
    run(BlockDetector(), inputs, tmp_path / 'out', ann=ann)
    found = read(tmp_path / 'out', 'predictions.json')
    assert {entry['image_id'] for entry in found} == {70, 'seven', 3}
    assert {entry['category_id'] for entry in found} == {11}  # label 0 is class a
    listed = read(tmp_path / 'out', 'images.json')
    widths = {image['id']: image['width'] for image in listed['images']}
    assert widths == {'seven': 40, 70: 20, 3: 25}
    assert [category['id'] for category in listed['categories']] == [11, 90, 5, 1]
    for key, message in (
        ('images', "has no image '.*y.png' .1 are"),
        ('categories', "has no category 'd'"),
    ):
        ann.write_text(json.dumps({**content, key: content[key][:-1]}))
        with pytest.raises(ValueError, match=message):
            run(BlockDetector(), inputs, tmp_path / 'out', ann=ann)
    ann.write_text('[]')
    with pytest.raises(ValueError, match=r"ann: '.*ann.json' is no COCO JSON"):
        run(BlockDetector(), inputs, tmp_path / 'out', ann=ann)
