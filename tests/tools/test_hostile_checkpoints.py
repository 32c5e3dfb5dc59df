"""A checkpoint that would run a command is refused by every tool that opens one."""

import os

import pytest
import torch
from PIL import Image

from cpvt_backbones.checkpoints import CheckpointError
from cpvt_backbones.weights import find_shipped

CONFIG = find_shipped('retinanet_cpvt_tiny_gap-bccd').config_file


class Call:
    def __init__(self, *arguments):
        self.arguments = arguments

    def __reduce__(self):
        return os.system, self.arguments


@pytest.mark.parametrize(
    'tool', ['infer', 'test', 'export', 'convert_checkpoint', 'publish_checkpoint']
)
def test_nothing_runs(tool, tmp_path, call, capsys):
    pytest.importorskip('mmdet')
    trace = tmp_path / 'trace'
    file = tmp_path / 'hostile.pth'
    torch.save(dict(state_dict={}, evil=Call(f'touch {trace}')), file)
    Image.new('RGB', (32, 32)).save(tmp_path / 'image.png')
    arguments = dict(
        infer=[CONFIG, file, tmp_path / 'image.png', '--out-dir', tmp_path / 'out'],
        test=[CONFIG, file, '--work-dir', tmp_path / 'work'],
        export=[CONFIG, file, '--out', tmp_path / 'model.onnx'],
        convert_checkpoint=[file, tmp_path / 'out.pth', '--type', 'CPVT'],
        publish_checkpoint=[file, tmp_path / 'out.pth'],
    )
    with pytest.raises((CheckpointError, SystemExit)) as stopped:
        call(tool, *arguments[tool])
    told = str(stopped.value) + capsys.readouterr().err
    assert (
        "hostile.pth' is refused: opening it would import posix.system" in told
        and 'Traceback' not in told
    )
    assert not trace.exists()
