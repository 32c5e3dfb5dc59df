"""Features of a config's backbone, their principal components, and the command line."""

import numpy as np
import pytest
import torch

from cpvt.plots import enlarge, to_map
from cpvt_backbones.analysis.features import (
    FeatureExtractor,
    channel_norm,
    load_picture,
    principal_colours,
)
from cpvt_backbones.analysis.tables import read_table
from cpvt_backbones.checkpoints import CheckpointError
from cpvt_backbones.inference import ImageError
from cpvt_backbones.toolboxes import read_config


def test_principal_components_recover_patterns():
    """Three independent patterns of decreasing strength, mixed into ten channels, become red, green
    and blue.
    """
    patterns = torch.rand(3, 20, 30, dtype=torch.double) * 2 - 1
    basis = torch.linalg.qr(torch.randn(10, 3, dtype=torch.double)).Q
    mixed = torch.einsum('ck,khw->chw', basis * torch.tensor([16.0, 4.0, 1.0]), patterns) + 3
    colours = principal_colours(mixed, clip=0.0)
    assert colours.shape == (20, 30, 3) and colours.min() == 0 and colours.max() == 1
    for index in range(3):
        correlation = np.corrcoef(colours[..., index].flatten(), patterns[index].flatten())[0, 1]
        assert abs(correlation) > 0.98
    assert torch.allclose(principal_colours(mixed + 5), principal_colours(mixed), atol=1e-5)
    assert torch.allclose(channel_norm(mixed), mixed.square().sum(0).sqrt())


def test_constant_components_are_grey():
    assert torch.equal(principal_colours(torch.ones(4, 2, 3)), torch.full((2, 3, 3), 0.5))
    only_one = torch.cat((torch.arange(12.0).view(1, 3, 4), torch.zeros(3, 3, 4)))
    colours = principal_colours(only_one)
    assert torch.equal(colours[..., 1:], torch.full((3, 4, 2), 0.5)) and colours[..., 0].max() == 1
    with pytest.raises(ValueError, match=r'feature_map must be \(C, h, w\) with C >= 3'):
        principal_colours(torch.ones(2, 3, 4))


def test_enlarge_and_to_map():
    values = np.arange(6.0).reshape(2, 3)
    large = enlarge(values, 4, (7, 10))
    assert large.shape == (7, 10) and large[6, 9] == 5 and large[3, 3] == 0
    cells = [(row, column) for row in range(2) for column in range(3)]
    records = [dict(row=f'{r}', column=f'{c}', value=f'{values[r, c]}') for r, c in cells]
    assert np.array_equal(to_map(records[::-1], 'value'), values)


@pytest.mark.parametrize('scope', ['mmdet', 'mmseg', 'mmpretrain'])
def test_weights_and_normalisation_are_those_of_the_config(scope, trained, tmp_path):
    path, checkpoint = trained(scope)
    features = FeatureExtractor(read_config(path, work_dir=tmp_path / 'work'), checkpoint)
    photo = np.random.default_rng(0).integers(0, 255, (40, 48, 3), np.uint8)
    images = features.normalise([photo, photo[::-1]])
    assert images.shape == (2, 3, 40, 48)
    expected = (torch.from_numpy(photo).permute(2, 0, 1).float() - 127.5) / 60
    assert torch.allclose(images[0], expected, atol=1e-5)  # RGB, as all these configs say
    with torch.no_grad():
        (found,) = features(images)
    assert found.shape == (2, 16, 5, 6)
    saved = torch.load(checkpoint)['state_dict']
    for name, value in features.backbone.state_dict().items():
        assert torch.equal(saved[f'backbone.{name}'], value)


def test_incomplete_checkpoints_are_refused(trained, tmp_path):
    pytest.importorskip('mmdet')
    path, checkpoint = trained('mmseg')
    cfg = read_config(path, work_dir=tmp_path / 'work')
    cfg.model.backbone = dict(type='mmdet.ResNet', depth=18, out_indices=(3,))
    cfg.model.neck.in_channels = [512]
    with pytest.raises(CheckpointError, match='lacks .* weights: conv1.weight'):
        FeatureExtractor(cfg, checkpoint)
    with pytest.raises(ImageError, match='there is no such file'):
        load_picture(tmp_path / 'none.jpg')


def test_command_line(call, trained, photo, tmp_path):
    path, checkpoint = trained('mmpretrain')
    out = tmp_path / 'out/features.csv'
    call('feature_maps', path, checkpoint, photo, '--out', out)
    records = read_table(out)
    assert len(records) == 5 * 8 and records[-1]['row'] == '4' and records[-1]['cell'] == '8'
    first = out.with_suffix('.png').read_bytes()
    checkpoint.unlink()
    call('feature_maps', path, checkpoint, photo, '--out', out, '--draw')
    assert out.with_suffix('.png').read_bytes() == first
    call('feature_maps', path, '-', photo, '--out', out, '--shape', '24x40')  # height by width
    last = read_table(out)[-1]
    assert (last['row'], last['column']) == ('2', '4')
