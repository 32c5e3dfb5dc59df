"""Output folders: files, names, and continuing."""

import contextlib
import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from bad_files import BAD, GOOD, write_folder
from folder_runs import MODELS, read, run, snapshot, write_images
from local_models import BlockDetector, BlockInstances, LocalSegmentor
from PIL import Image
from tiny import interrupting

from cpvt_backbones.inference import Inferencer, merge_shards, predict_to_folder

# -- files
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize('model', MODELS)
def test_a_folder_of_good_and_bad_files(model, tmp_path, out):
    summary = run(model(), write_folder(tmp_path / 'images'), out)
    assert (summary.predicted, summary.found) == (len(GOOD), 0)
    failed = {Path(name).name: reason for name, reason in summary.failed.items()}
    assert failed.keys() == BAD.keys()
    assert all(failed[name].startswith(reason) for name, reason in BAD.items())
    pairs = summary.failed.items()
    expected = [dict(file_name=name, reason=reason) for name, reason in pairs]
    assert read(out, 'failed.json') == expected
    listed = read(out, 'images.json')['images']
    assert {Path(one['file_name']).name: (one['width'], one['height']) for one in listed} == GOOD
    ids = {one['id'] for one in listed}
    predicted = {entry['image_id'] for entry in read(out, 'predictions.json')}
    assert len(ids) == len(GOOD)
    assert predicted == ids or model is BlockDetector and predicted <= ids
    # Pictures have the stem of the file.
    assert {file.stem for file in (out / 'vis').iterdir()} == {Path(name).stem for name in GOOD}


@pytest.mark.parametrize('model', [BlockDetector, BlockInstances])
def test_boxes_are_coco_results(model, folder, out):
    coco = pytest.importorskip('pycocotools.coco')
    run(model(), folder, out)
    images = coco.COCO(out / 'images.json')
    results = images.loadRes(str(out / 'predictions.json'))
    for image in images.dataset['images']:
        i = int(Path(image['file_name']).stem)
        (box,) = results.imgToAnns[image['id']]
        assert box['bbox'] == [5, 5, 10 + i, 10] and box['score'] == pytest.approx(0.9)
        assert box['area'] == 10 * (10 + i)
        assert images.cats[box['category_id']]['name'] == 'a'
        if model is BlockInstances:
            assert results.annToMask(box)[5:15, 5 : 15 + i].all()


@pytest.mark.parametrize(('classes', 'dtype'), [(4, np.uint8), (300, np.uint16)])
def test_class_maps_have_16_bits_when_8_are_too_few(folder, out, classes, dtype):
    predictor = LocalSegmentor()
    predictor.levels = torch.arange(classes) * (255 / (classes - 1))
    run(predictor, folder / '0.png', out, vis=False)
    (entry,) = read(out, 'predictions.json')
    written = np.asarray(Image.open(out / entry['seg_map']))
    expected, _ = Inferencer(predictor=predictor)(folder / '0.png')
    np.testing.assert_array_equal(written, expected['seg_map'])
    assert written.dtype == dtype and written.max() == classes - 1


def test_ids_are_those_of_a_coco_json(tmp_path, out):
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
    run(BlockDetector(), inputs, out, ann=ann)
    found = read(out, 'predictions.json')
    assert {entry['image_id'] for entry in found} == {70, 'seven', 3}
    assert {entry['category_id'] for entry in found} == {11}  # label 0 is class a
    listed = read(out, 'images.json')
    widths = {image['id']: image['width'] for image in listed['images']}
    assert widths == {'seven': 40, 70: 20, 3: 25}
    assert [category['id'] for category in listed['categories']] == [11, 90, 5, 1]
    for text, message in (
        (json.dumps({**content, 'images': content['images'][:-1]}), "has no image '.*y.png' .1 ar"),
        (json.dumps({**content, 'categories': content['categories'][:-1]}), "has no category 'd'"),
        ('[]', r"ann: '.*ann.json' is not COCO JSON"),
    ):
        ann.write_text(text)
        with pytest.raises(ValueError, match=message):
            run(BlockDetector(), inputs, out, ann=ann)


@pytest.mark.parametrize(
    ('images', 'categories', 'message'),
    [
        ('x.png', 'abcd', "'.*a/x.png' and '.*b/x.png' are both the entry 'x.png'"),
        ('a/x.png x.png', 'abcd', None),
        ('a/x.png x.png x.png', 'abcd', "the images of '.*' have the name 'x.png' twice"),
        ('a/x.png b/x.png', 'abcda', "the categories of '.*' have the name 'a' twice"),
        ('a/x.png b/x.png =', 'abcd', "the images of '.*' have the id 0 twice"),
    ],
)
def test_an_entry_of_a_coco_json_is_of_one_image(tmp_path, out, images, categories, message):
    for name in ('a/x.png', 'b/x.png'):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.new('RGB', (20, 30)).save(tmp_path / name)
    names = images.split()
    listed = [
        dict(id=0 if name == '=' else number, file_name=name) for number, name in enumerate(names)
    ]
    content = dict(
        images=listed,
        categories=[dict(id=number, name=name) for number, name in enumerate(categories)],
    )
    ann = tmp_path / 'ann.json'
    ann.write_text(json.dumps(content))
    inputs = [tmp_path / 'a', tmp_path / 'b']
    if message is None:
        run(BlockDetector(), inputs, out, ann=ann)
        return
    with pytest.raises(ValueError, match=message):
        run(BlockDetector(), inputs, out, ann=ann)
    assert not (out / 'predictions.json').exists()


# -- names
# --------------------------------------------------------------------------------------------------


def test_inputs_of_one_name_do_not_overwrite_each_other(tmp_path, out):
    for i, name in enumerate(('a/x.png', 'b/x.png', 'b/x.bmp', 'b/X_2.png', 'c/x.png')):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.new('RGB', (4 + i, 3)).save(tmp_path / name)
    run(LocalSegmentor(), [tmp_path / 'b', tmp_path / 'c'], out)
    # Names are kept when other images precede in a later run.
    run(LocalSegmentor(), [tmp_path / name for name in ('a', 'b', 'c', 'a/x.png')], out)
    listed = {image['id']: image for image in read(out, 'images.json')['images']}
    entries = read(out, 'predictions.json')
    assert len(listed) == len({entry['seg_map'].lower() for entry in entries}) == 5
    for entry in entries:
        image = listed[entry['image_id']]
        assert Image.open(out / entry['seg_map']).size == Image.open(image['file_name']).size


def test_one_file_by_two_names_is_one_image(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(LocalSegmentor(), [Path('images/0.png'), folder / '0.png'], 'out').predicted == 1
    assert [file.name for file in Path('out/pred').iterdir()] == ['0.png']


def test_the_longest_file_names_are_cut(tmp_path, out):
    folder = tmp_path / 'images'
    folder.mkdir()
    for last in 'ab':
        Image.new('RGB', (8, 8)).save(folder / f'{"ä" * 120}{last}.png')
    assert run(LocalSegmentor(), folder, out).predicted == 2
    assert len(list((out / 'pred').iterdir())) == 2


@pytest.mark.parametrize('form', [str, Path])
def test_images_may_be_a_folder_or_a_pattern(folder, out, form):
    model = Inferencer(predictor=LocalSegmentor())
    for inputs in (folder, folder / '*.png', [folder], [folder / '*.png', folder / '1.png']):
        given = [form(one) for one in inputs] if isinstance(inputs, list) else form(inputs)
        options = dict(out_dir=out, progress=False)
        summary = predict_to_folder(model, given, **options)
        assert (summary.predicted + summary.found, summary.failed) == (6, {})
    for shard in (0, 1):
        options = dict(out_dir=out / 'shards', shard=(shard, 2), progress=False)
        predict_to_folder(model, form(folder), **options)
    assert merge_shards(form(folder), out / 'shards').found == 6
    missing = form(folder / 'gone.png')
    summary = predict_to_folder(model, [missing], out_dir=out, progress=False)
    assert summary.failed.keys() == {str(missing)}
    with pytest.raises(FileNotFoundError, match='there is no file or folder'):
        predict_to_folder(model, missing, out_dir=out, progress=False)


@pytest.mark.parametrize('threshold', [float('nan'), -0.1, 1.1, True, '0.3'])
def test_a_score_thr_outside_0_to_1_is_refused(folder, out, threshold):
    words = rf'score_thr must be a number in \[0, 1\], got {threshold!r}'
    with pytest.raises(ValueError, match=words):
        run(BlockDetector(), folder, out, score_thr=threshold)
    assert not out.exists()
    with pytest.raises(ValueError, match=words):
        Inferencer(predictor=BlockDetector())(np.zeros((9, 9, 3), np.uint8), score_thr=threshold)


# -- continuing
# --------------------------------------------------------------------------------------------------


class Meddling(LocalSegmentor):
    """Calls a function before each forward call."""

    def __init__(self, meddle, after=0):
        super().__init__()
        self.meddle, self.after = meddle, after

    def logits(self, images):
        if len(self.forwards) >= self.after:
            self.meddle()
        return super().logits(images)


def test_a_killed_run_is_continued(folder, out, tmp_path):
    """Killed, with an incomplete last line in its records."""
    child = os.fork()
    if child == 0:
        try:
            run(Meddling(lambda: os.kill(os.getpid(), signal.SIGKILL), after=3), folder, out)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    records = out / 'records.jsonl'
    complete = records.read_text() if records.exists() else ''
    assert complete.count('\n') <= 3
    records.write_text(f'{complete}{{"key": "')
    (out / 'pred').mkdir(exist_ok=True)
    (out / 'pred' / '.3.png.0a1b2c3d.part').write_bytes(b'half')
    other = out / '.film.part'
    other.touch()
    again = LocalSegmentor()
    run(again, folder, out)
    assert len(again.forwards) == 6 - complete.count('\n')
    run(LocalSegmentor(), folder, tmp_path / 'whole')
    other.unlink()  # of somebody else: kept
    assert snapshot(out) == snapshot(tmp_path / 'whole')


@pytest.mark.parametrize('panoptic', [False, True])
def test_wherever_a_run_is_killed_no_ids_are_beside_predictions_of_others(
    panoptic, folder, out, monkeypatch
):
    """Ctrl-C at every file that is flushed, deleted or renamed: all JSON files of one run, or no
    ``predictions.json``.
    """
    predictor = BlockDetector()
    predictor.num_things = 1 if panoptic else None
    if panoptic:
        monkeypatch.setattr('cpvt_backbones.inference.outputs.coco_entries', panoptic_entry)
    run(predictor, folder, out)
    old = {file.name: file.read_bytes() for file in out.glob('*.json')}
    assert len(old) == 4 + panoptic
    (out / 'predictions.csv').write_text('of the first run')
    (folder / '0.png').unlink()  # so the others get other ids
    states = []
    steps = ((os, 'fsync'), (os, 'replace'), (Path, 'unlink'))
    while len(states) < 100:
        with monkeypatch.context() as patched:
            functions = [getattr(owner, name) for owner, name in steps]
            interrupted = interrupting(*functions, at=len(states) + 1)
            for (owner, name), function in zip(steps, interrupted, strict=True):
                patched.setattr(owner, name, function)
            with contextlib.suppress(KeyboardInterrupt):
                run(predictor, folder, out)
                break
        states.append({file.name: file.read_bytes() for file in out.glob('*.json')})
        if 'predictions.json' in states[-1]:
            assert (states[-1] == old) >= (out / 'predictions.csv').exists()
        for name, content in old.items():
            (out / name).write_bytes(content)
        (out / 'predictions.csv').write_text('of the first run')
    new = {file.name: file.read_bytes() for file in out.glob('*.json')}
    whole = [state for state in states if 'predictions.json' in state]
    assert old != new and all(state in (old, new) for state in whole)
    assert whole.count(old) > 5 and new in whole and len(whole) < len(states)
    assert not list(out.glob('.results*'))


def panoptic_entry(image_id, prediction, kinds):
    return [dict(image_id=image_id, segments_info=prediction['labels'])]


def test_changed_images_and_missing_outputs_are_predicted_again(folder, out):
    (folder / '7.png').write_text('not yet')
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


def test_other_settings_are_refused_unless_overwritten(folder, out):
    run(LocalSegmentor(), folder, out)
    before = snapshot(out)
    other, reduced = LocalSegmentor(), LocalSegmentor()
    other.fingerprint = 'other'
    reduced.dtype = 'bfloat16'
    for predictor, options, words in (
        (other, {}, "model was 'local', is 'other'"),
        (reduced, {}, "dtype was None, is 'bfloat16'"),
        (LocalSegmentor(), dict(vis=False), 'vis was True, is False'),
        (LocalSegmentor(), dict(score_thr=0.5), 'score_thr was 0.3, is 0.5'),
        (LocalSegmentor(), dict(inferencer=dict(long_side=20)), r'scale was None, is \[20, 20\]'),
    ):
        with pytest.raises(ValueError, match=rf'{words}.*\(--overwrite\)$'):
            run(predictor, folder, out, **options)
    assert snapshot(out) == before
    run(LocalSegmentor(), folder / '0.png', out, overwrite=True, vis=False)
    files = 'run.json images.json predictions.json failed.json pred/0.png'
    assert snapshot(out).keys() == {*files.split()}


def test_a_file_changed_during_a_run_is_predicted_again(tmp_path, out):
    file = tmp_path / '0.png'
    Image.new('RGB', (8, 8)).save(file)
    run(Meddling(lambda: Image.new('RGB', (9, 9), (240,) * 3).save(file)), file, out)
    assert run(LocalSegmentor(), file, out).predicted == 1
    assert set(np.unique(np.asarray(Image.open(out / 'pred' / '0.png')))) == {3}


def test_failure_to_draw_does_not_stop_other_images(tmp_path, out):
    """Class 3 has no colour."""
    folder = tmp_path / 'images'
    folder.mkdir()
    for i, level in enumerate((0, 240, 80)):
        Image.new('RGB', (8, 8), (level,) * 3).save(folder / f'{i}.png')
    predictor = LocalSegmentor()
    predictor.palette = [[0, 0, 0], [255, 0, 0]]
    summary = run(predictor, folder, out, vis=True)
    assert summary.predicted == 2
    assert [Path(name).name for name in summary.failed] == ['1.png']
    assert len(read(out, 'predictions.json')) == 2


def test_two_processes_do_not_share_a_folder(folder, out):
    refused = []

    def second():
        with pytest.raises(ValueError, match=r"out_dir: another process is writing to '.*out'"):
            run(LocalSegmentor(), folder, out)
        refused.append(1)

    assert run(Meddling(second), folder, out).predicted == 6
    assert refused
    assert run(LocalSegmentor(), folder, out).found == 6
