"""Weights in several files and in folders, as huggingface_hub and transformers write them."""

import json

import pytest
import torch
from safetensors.torch import save_file
from tiny import COLUMN

from cpvt_backbones import CPVT
from cpvt_backbones.checkpoints import CheckpointError, locate_checkpoint, read_checkpoint

hub = pytest.importorskip('huggingface_hub')

SAFE, PICKLED = 'model.safetensors', 'pytorch_model.bin'


@pytest.fixture
def model():
    return CPVT(arch=COLUMN)


def write(model, folder, *, safe, size='5MB'):
    """Write a model by huggingface_hub, in files of at most ``size``."""
    hub.save_torch_state_dict(
        model.state_dict(), folder, max_shard_size=size, safe_serialization=safe
    )


@pytest.mark.parametrize('size', ['20KB', '5MB'])
@pytest.mark.parametrize('safe', [True, False])
def test_folders(safe, size, model, tmp_path):
    write(model, tmp_path, safe=safe, size=size)
    name = SAFE if safe else PICKLED
    if size == '20KB':
        name += '.index.json'
        assert len(list(tmp_path.iterdir())) > 3
    assert locate_checkpoint(tmp_path) == tmp_path / name
    found = read_checkpoint(tmp_path)
    assert found.keys() == model.state_dict().keys()
    assert all(torch.equal(found[key], value) for key, value in model.state_dict().items())


def test_one_of_several_files_is_refused(model, tmp_path):
    write(model, tmp_path, safe=True, size='20KB')
    file = sorted(tmp_path.glob('*.safetensors'))[0]
    with pytest.raises(
        CheckpointError, match=r"-00001-of-\d+\.safetensors' is one of \d+ files of"
    ):
        read_checkpoint(file)
    whole = tmp_path / 'model-00001-of-00001.safetensors'
    save_file(model.state_dict(), whole)
    assert read_checkpoint(whole).keys() == model.state_dict().keys()


@pytest.mark.parametrize(
    ('content', 'message'),
    [
        ('{', 'is not JSON'),
        ('{"metadata": {}}', 'must have a weight_map of keys and files, got None'),
        ('{"weight_map": {"a": 3}}', 'must name .safetensors or .bin files of its folder, got 3'),
        ('{"weight_map": {"a": "../a.bin"}}', "files of its folder, got '../a.bin'"),
        ('{"weight_map": {"a": "b\\\\a.bin"}}', 'files of its folder, got'),
        ('{"weight_map": {"a": "a.index.json"}}', "files of its folder, got 'a.index.json'"),
        (
            json.dumps(dict(weight_map={str(n): f'{n}.bin' for n in range(1001)})),
            'names more than 1000 files',
        ),
        ('{"weight_map": {"a": "a.safetensors"}}', r'is not the file of .*: it has other keys, b$'),
        (
            '{"weight_map": {"a": "a.safetensors", "c": "a.safetensors"}}',
            r'is not the file of .*: it lacks c$',
        ),
    ],
)
def test_a_damaged_index_is_refused(content, message, tmp_path):
    save_file(dict(a=torch.zeros(1), b=torch.zeros(1)), tmp_path / 'a.safetensors')
    (tmp_path / 'model.safetensors.index.json').write_text(content)
    with pytest.raises(CheckpointError, match=message):
        read_checkpoint(tmp_path)


def test_a_file_that_is_missing_is_named(tmp_path):
    index = '{"weight_map": {"a": "b.safetensors"}}'
    (tmp_path / 'model.safetensors.index.json').write_text(index)
    with pytest.raises(FileNotFoundError, match="names 'b.safetensors', which is not beside it"):
        read_checkpoint(tmp_path)


def test_files_of_other_names_in_a_folder_are_named(tmp_path):
    (tmp_path / 'open_clip_model.safetensors').touch()
    (tmp_path / 'notes.txt').touch()
    message = 'none of model.safetensors, .*; pass one of its files: open_clip_model.safetensors$'
    with pytest.raises(FileNotFoundError, match=message):
        locate_checkpoint(tmp_path)
