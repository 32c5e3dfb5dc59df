"""Stages side by side: results of one after the other, bounded memory, clean ends."""

import threading
import time
from concurrent.futures import Future

import numpy as np
import pytest
from bad_files import write_folder
from folder_runs import MODELS, run, snapshot, write_images
from local_models import LocalSegmentor

from cpvt_backbones.inference import Inferencer, folders, image_size, inferencer, read_image


class OneAfterTheOther:
    """An executor that runs each call at once."""

    def __init__(self, threads):
        pass

    def submit(self, call, *args):
        future = Future()
        try:
            future.set_result(call(*args))
        except Exception as error:
            future.set_exception(error)
        return future

    def shutdown(self, **_):
        pass


class Uneven(LocalSegmentor):
    """The first images take longest after their forward call."""

    def to_classes(self, logits):
        time.sleep(0.05 if len(self.forwards) < 3 else 0)
        return super().to_classes(logits)


@pytest.mark.parametrize('model', [*MODELS, Uneven])
def test_outputs_are_those_of_one_stage_after_the_other(model, tmp_path, monkeypatch):
    folder = write_folder(tmp_path / 'images')
    run(model(), folder, tmp_path / 'threads')
    monkeypatch.setattr(inferencer, 'ThreadPoolExecutor', OneAfterTheOther)
    run(model(), folder, tmp_path / 'serial')
    assert snapshot(tmp_path / 'threads') == snapshot(tmp_path / 'serial')
    records = [tmp_path / out / 'records.jsonl' for out in ('threads', 'serial')]
    assert records[0].read_bytes() == records[1].read_bytes()


def test_an_error_while_writing_keeps_what_was_written(tmp_path, monkeypatch):
    folder = write_images(tmp_path / 'images')
    run(LocalSegmentor(), folder, tmp_path / 'whole')
    write = folders.write_outputs

    def full(out, name, result):
        if name == '3':
            raise OSError(28, 'No space left on device')
        return write(out, name, result)

    monkeypatch.setattr(folders, 'write_outputs', full)
    with pytest.raises(OSError, match="out_dir: '.*' cannot be written to: No space left"):
        run(LocalSegmentor(), folder, tmp_path / 'out')
    monkeypatch.setattr(folders, 'write_outputs', write)
    assert run(LocalSegmentor(), folder, tmp_path / 'out').found >= 3
    assert snapshot(tmp_path / 'out') == snapshot(tmp_path / 'whole')


def test_results_of_finished_forward_calls_survive_an_interruption():
    class Interrupted(LocalSegmentor):
        def logits(self, images):
            if len(self.forwards) == 3:
                raise KeyboardInterrupt
            return super().logits(images)

    results, images = [], [np.zeros((8, 8, 3), np.uint8)] * 9
    with pytest.raises(KeyboardInterrupt):
        results.extend(Inferencer(predictor=Interrupted()).stream(images))
    before = threading.active_count()
    stream = Inferencer(predictor=LocalSegmentor()).stream(images)
    next(stream)
    stream.close()
    assert threading.active_count() == before
    assert [index for index, _ in results] == [0, 1, 2]


def test_the_size_in_the_header(tmp_path):
    for path in write_folder(tmp_path / 'images').iterdir():
        size = image_size(path)
        try:
            shape = read_image(path).shape
        except ValueError:
            continue
        assert sorted(size) == sorted(shape[:2])
    # Unknown sizes would count as nothing against the bytes that may wait.
    np.save(tmp_path / 'bands.npy', np.zeros((16, 21, 13), np.uint16))
    assert image_size(tmp_path / 'bands.npy') == (21, 16)
    (tmp_path / 'broken.npy').write_bytes(b'no array')
    assert image_size(tmp_path / 'broken.npy') is None
    assert image_size(tmp_path / 'none.png') is None
    assert image_size(np.zeros((4, 7, 3), np.uint8)) == (7, 4)
