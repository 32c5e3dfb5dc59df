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


def write_files(folder):
    """A truncated file, one of another structure, and a hostile one."""
    whole, half, other = (folder / f'{name}.pth' for name in ('whole', 'half', 'other'))
    torch.save(dict(state_dict=dict(weight=torch.ones(100, 100))), whole)
    half.write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])
    torch.save([torch.ones(2)], other)
    return [half, other, write_hostile_files(folder, f'touch {folder}/trace')[0]]


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
def test_one_line_names_the_file(tool, files, tmp_path, refused):
    config, _ = classification(None, tmp_path)
    image = next((tmp_path).rglob('*.png'))
    for file in files:
        line = refused(*arguments_of(tool, config, file, image, tmp_path / 'out'))
        assert file.name in line
        assert not (file.parent / 'trace').exists()
