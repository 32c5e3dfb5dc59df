"""Reading a checkpoint takes at most twice the memory of its file, whole or damaged."""

import resource
import sys

import pytest
import torch

if sys.platform != 'linux':
    pytest.skip('the harness forks', allow_module_level=True)

from runs import Process

from cpvt_backbones.checkpoints import CheckpointError, read_checkpoint, write_checkpoint


@pytest.mark.parametrize('damaged', [False, True], ids=['whole', 'half'])
@pytest.mark.parametrize('suffix', ['zip.pth', 'legacy.pth', 'weights.safetensors'])
def test_memory_of_a_file(suffix, damaged, tmp_path):
    file = tmp_path / suffix
    weights = {f'weight_{i}': torch.full((1000, 1000), float(i)) for i in range(20)}
    if suffix == 'legacy.pth':
        torch.save(dict(state_dict=weights), file, _use_new_zipfile_serialization=False)
    else:
        write_checkpoint(weights, file, meta={})
    del weights
    size = file.stat().st_size
    if damaged:
        with file.open('r+b') as stream:
            stream.truncate(size // 2)

    def read():
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        try:
            read_checkpoint(file)
            assert not damaged
        except CheckpointError:
            assert damaged
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
        assert grown <= 2 * size, (grown, size)

    assert Process(read, tmp_path / 'log').finish() == 0, (tmp_path / 'log').read_text()
