"""Predictions that are killed, and folders of many sizes."""

import itertools
import random
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

if sys.platform != 'linux':
    pytest.skip('the harness forks', allow_module_level=True)

from runs import STEP, Process, report

from cpvt_backbones.inference import Inferencer, find_images, inferencer, predict_to_folder

pytestmark = pytest.mark.full


class Brightness:
    """A classifier into dark and bright that reports every batch."""

    task = 'classification'
    classes = ('dark', 'bright')
    palette = None
    fingerprint = 'brightness'

    def predict(self, images):
        report(STEP)
        shares = [float(image.mean()) / 255 for image in images]
        return [dict(scores=np.array([1 - share, share])) for share in shares]


def write_images(folder: Path, count: int, most: int, seed: int = 0) -> Path:
    """Noise images of ``count`` sizes, up to ``most`` px a side."""
    folder.mkdir()
    rng = np.random.default_rng(seed)
    for number in range(count):
        height, width = rng.integers(1, most, 2)
        Image.fromarray(rng.integers(0, 256, (height, width, 3), np.uint8)).save(
            folder / f'{number}.png'
        )
    return folder


def predict(images: Path, out: Path) -> None:
    inferencer = Inferencer(predictor=Brightness(), batch_size=2)
    predict_to_folder(inferencer, find_images(images), out_dir=out, vis=False, progress=False)


def snapshot(out: Path) -> dict[str, bytes]:
    """Everything a run has written, except its own records."""
    files = (
        file
        for file in out.rglob('*')
        if file.is_file() and not file.name.startswith(('records.jsonl', '.lock'))
    )
    return {str(file.relative_to(out)): file.read_bytes() for file in files}


@pytest.mark.parametrize('kills', [3, pytest.param(30, marks=pytest.mark.slow)])
def test_killed_predictions_resume_byte_equal(kills, tmp_path):
    images = write_images(tmp_path / 'images', 12, 30)
    predict(images, tmp_path / 'whole')
    expected, rng, done = snapshot(tmp_path / 'whole'), random.Random(kills), 0
    for number in itertools.count():
        out = tmp_path / f'out_{number}'
        while done < kills:
            process = Process(lambda out=out: predict(images, out), tmp_path / 'log')
            if not process.wait(STEP, rng.randint(1, 6)):
                assert process.finish() == 0, (tmp_path / 'log').read_text()
                break
            process.kill()
            process.finish()
            done += 1
        assert Process(lambda out=out: predict(images, out), tmp_path / 'log').finish() == 0
        assert snapshot(out) == expected
        if done == kills:
            break


def test_memory_does_not_grow_with_the_number_of_images(tmp_path, monkeypatch):
    """The images in memory at once stay within the bounds of the queues.

    All of them would take twice as much. Only what Python and NumPy allocate is counted: what a
    process holds depends on its allocator, too.
    """
    limit, most = 2_000_000, 500
    monkeypatch.setattr(inferencer, 'WAITING_BYTES', limit)
    images = write_images(tmp_path / 'images', 120, most)
    predict(images, tmp_path / 'first')  # what is imported at the first image stays
    tracemalloc.start()
    try:
        predict(images, tmp_path / 'out')
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    largest = most**2 * 3
    # Each of three queues (to decode, to batch, to write) may pass its limit by one image, and a
    # batch of two is in use.
    bound = 3 * (limit + largest) + 2 * largest
    assert peak < bound < sum(np.asarray(Image.open(file)).nbytes for file in images.iterdir()) / 2
