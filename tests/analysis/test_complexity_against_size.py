"""What a model costs at several sizes: counts by arithmetic, one row for each model and size."""

import pytest
import torch

from cpvt_backbones.analysis.complexity import complexity_against_size
from cpvt_backbones.engine.launch import read_config

COLUMN = dict(
    type='CPVT',
    arch=dict(embed_dims=16, depth=2, num_heads=2, mlp_ratio=3),
    patch_size=8,
    with_cls_token=False,
    init_cfg=dict(type='Pretrained', checkpoint='there_is_no_such_file.pth'),
)


def test_attention_takes_over_as_images_grow():
    rows = complexity_against_size({'column': COLUMN}, [(32, 32), (64, 64), (41, 96)])
    for row, cells in zip(rows, (16, 64, 6 * 12), strict=True):
        linear = 4 * 16**2 + 2 * 3 * 16**2
        layers = cells * (3 * 8**2 * 16 + 2 * linear + 9 * 16)
        assert row.attention_gmacs * 1e9 == pytest.approx(2 * 2 * cells**2 * 16)
        assert row.gmacs * 1e9 == pytest.approx(layers + row.attention_gmacs * 1e9)
        assert row.attention_share == pytest.approx(row.attention_gmacs / row.gmacs)
        assert row.peak_mib is None
    assert rows[0].parameters == rows[1].parameters


def test_configs_and_other_packages(trained, tmp_path):
    path, _ = trained('mmseg')
    cfg = read_config(path, work_dir=tmp_path / 'work')
    models = {'config': cfg, 'theirs': dict(type='mmseg.VisionTransformer', embed_dims=24, num_heads=3, num_layers=1)}
    rows = complexity_against_size(models, [(64, 96)], memory='cpu')
    cells = 4 * 6 + 1
    assert rows[1].attention_gmacs * 1e9 == pytest.approx(2 * cells**2 * 24)
    assert all(row.peak_mib is not None and row.peak_mib >= 0 for row in rows)
    assert torch.zeros(1).device.type == 'cpu'
