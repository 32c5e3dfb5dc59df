"""What the workers of a data loader do with signals."""

import subprocess
import sys

import pytest

CODE = """
from torch.utils.data import DataLoader
from cpvt_backbones.engine.seeding import shield_workers

class Data:
    def __len__(self):
        return 8

    def __getitem__(self, index):
        # One call of C, which no signal interrupts.
        return sum(range(30_000_000)) if index == 2 else index

loader = DataLoader(Data(), batch_size=None, num_workers=2, persistent_workers=True)
shield_workers(loader)
images = iter(loader)  # alive until the interpreter ends
print(next(images), next(images))
"""


@pytest.mark.full
def test_a_training_with_persistent_workers_ends_without_a_word():
    """multiprocessing ends them by SIGTERM, and torch reports a worker that it kills.

    While the main process waits for the first, which reads an image, the second ends.
    """
    done = subprocess.run([sys.executable, '-c', CODE], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout.split()) == (0, ['0', '1'])
    assert 'Exception ignored' not in done.stderr and 'killed by signal' not in done.stderr
