"""Stock configs of mmseg and mmpretrain are found as bases, whatever the name of the fork."""

import subprocess
import sys

import pytest
from tiny import only

from cpvt_backbones import patches
from cpvt_backbones.toolboxes import read_config


def write(folder, base, backbone):
    config = folder / 'config.py'
    config.write_text(
        f"_base_ = '{base}'\ncustom_imports = dict(imports=['cpvt_backbones'])\n{backbone}\n"
    )
    return config


STOCK_SEGMENTORS = (
    'sem_fpn/fpn_r50_4xb4-160k_ade20k-512x512.py',
    'vit/vit_deit-s16_upernet_8xb2-160k_ade20k-512x512.py',
    '_base_/models/upernet_r50.py',
)


@pytest.mark.parametrize('name', only(of=STOCK_SEGMENTORS))
def test_mmsegs_configs_are_found(name, tmp_path):
    """mmengine looks for a distribution called mmsegmentation.

    The maintained fork has another name.
    """
    pytest.importorskip('mmseg')
    model = "backbone=dict(_delete_=True, type='MultiScaleCPVT', arch='tiny')"
    config = write(
        tmp_path,
        f'mmseg::{name}',
        f"default_scope = 'mmseg'\nmodel = dict(pretrained=None, {model})",
    )
    cfg = read_config(config)
    assert cfg.model.type == 'EncoderDecoder'
    assert cfg.model.backbone == dict(type='MultiScaleCPVT', arch='tiny')
    plain, script = tmp_path / 'plain.py', tmp_path / 'script.py'
    plain.write_text(f"_base_ = 'mmseg::{name}'\nmodel = dict(pretrained=None, {model})\n")
    script.write_text(f"""
from mmengine.config import Config
print(Config.fromfile({str(plain)!r}).model.backbone.type)
""")
    command = [sys.executable, '-m', 'cpvt_backbones.run', str(script)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.strip().endswith('MultiScaleCPVT'), done.stderr


def test_mmpretrains_configs_are_found(tmp_path):
    pytest.importorskip('mmpretrain')
    backbone = (
        "model = dict(backbone=dict(_delete_=True, type='CPVT', arch='tiny', out_type='cls_token'))"
    )
    config = write(
        tmp_path,
        'mmpretrain::deit/deit-small_4xb256_in1k.py',
        f"default_scope = 'mmpretrain'\n{backbone}",
    )
    assert read_config(config).model.backbone.type == 'CPVT'


@pytest.mark.parametrize(
    ('distribution', 'module', 'wanted'),
    [(False, True, 'mmseg'), (True, True, 'mmsegmentation'), (False, False, 'mmsegmentation')],
)
def test_the_original_mmsegmentation_is_left_alone(distribution, module, wanted, monkeypatch):
    monkeypatch.setattr(patches, 'is_installed', lambda name: distribution)
    monkeypatch.setattr('importlib.util.find_spec', lambda name: object() if module else None)
    names = dict(mmseg='mmsegmentation', mmdet='mmdet')
    patches.find_mmseg(names)
    assert names == dict(mmseg=wanted, mmdet='mmdet')
