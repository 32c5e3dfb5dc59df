"""Every tool that opens a checkpoint ends with one line, naming the file, if the file is damaged or
hostile.
"""

import sys
from pathlib import Path

import pytest
import torch
from tiny_configs import classification

sys.path.insert(0, str(Path(__file__).parents[1] / 'checkpoints'))
from hostile import write_hostile_files

pytestmark = pytest.mark.full

pytest.importorskip('mmpretrain')

TOOLS = (
    *('infer', 'test', 'export', 'train_resume', 'train_load_from', 'convert_checkpoint'),
    *('publish_checkpoint', 'resolution_sweep'),
)
FEW = ('half', 'not_a_dict', 'hostile_0')


def write_files(folder):
    """Damaged and hostile files by name."""
    folder.mkdir(exist_ok=True)
    whole = folder / 'whole.pth'
    torch.save(dict(state_dict=dict(weight=torch.ones(100, 100))), whole)
    content = whole.read_bytes()
    flipped = bytearray(content)
    flipped[len(content) // 2] ^= 1
    damaged = dict(
        empty=b'',
        half=content[: len(content) // 2],
        flipped=bytes(flipped),
        text=b'no checkpoint',
        zip=b'PK\x03\x04',
    )
    files = {}
    for name, data in damaged.items():
        files[name] = folder / f'{name}.pth'
        files[name].write_bytes(data)
    objects = dict(
        not_a_dict=[torch.ones(2)],
        number=dict(state_dict=5),
        sparse=dict(state_dict=dict(weight=torch.eye(2).to_sparse())),
        repeated=dict(state_dict={'backbone.pos_embed': torch.zeros(1).expand(10**10, 192)}),
        other_model=dict(state_dict=dict(weight=torch.ones(2, 2))),
    )
    for name, value in objects.items():
        files[name] = folder / f'{name}.pth'
        torch.save(value, files[name])
    files['truncated_safetensors'] = folder / 'truncated.safetensors'
    files['truncated_safetensors'].write_bytes(b'\x10\x00\x00\x00\x00\x00\x00\x00{"weight":')
    hostile = write_hostile_files(folder, f'touch {folder}/trace')
    return files | {f'hostile_{number}': file for number, file in enumerate(hostile)}


@pytest.fixture(scope='module')
def files(tmp_path_factory):
    return write_files(tmp_path_factory.mktemp('files'))


def arguments_of(tool, config, file, image, out):
    model, models = [config, file], ['--models', f'a={config}:{file}']
    return dict(
        infer=['infer', *model, image, '--out-dir', out],
        test=['test', *model, '--work-dir', out],
        export=['export', *model, '--out', out / 'model.onnx'],
        train_resume=['train', config, '--resume', file, '--work-dir', out],
        train_load_from=['train', config, '--work-dir', out, '--cfg-options', f'load_from={file}'],
        convert_checkpoint=['convert_checkpoint', file, out / 'out.pth', '--type', 'CPVT'],
        publish_checkpoint=['publish_checkpoint', file, out / 'out.pth'],
        resolution_sweep=['resolution_sweep', *models, '--sizes', '1', '--out', out / 'sweep.csv'],
    )[tool]


@pytest.mark.parametrize('tool', TOOLS)
@pytest.mark.parametrize(
    'kinds', [FEW, pytest.param(None, marks=pytest.mark.slow)], ids=['few', 'all']
)
def test_one_line_names_the_file(tool, kinds, files, tmp_path, refused, capsys, record_property):
    config, _ = classification(None, tmp_path)
    image = next((tmp_path).rglob('*.png'))
    chosen = files if kinds is None else {name: files[name] for name in kinds}
    if tool == 'publish_checkpoint':  # it takes any state dict
        chosen = {name: file for name, file in chosen.items() if name != 'other_model'}
    record_property('tried', len(chosen))
    for name, file in chosen.items():
        line = refused(*arguments_of(tool, config, file, image, tmp_path / 'out'))
        assert file.name in line, name
        assert not (file.parent / 'trace').exists(), name
