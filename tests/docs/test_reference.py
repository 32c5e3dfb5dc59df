"""The reference of the backbones: its picture, table and configs are those of the models."""

from pathlib import Path

import torch

from cpvt_backbones import CPVT, MultiScaleCPVT, PyramidCPVT

ROOT = Path(__file__).resolve().parents[2]
CLASSES = {cls.__name__: cls for cls in (CPVT, MultiScaleCPVT, PyramidCPVT)}


def build(name, **arguments):
    with torch.device('meta'):
        return CLASSES[name](**arguments)


def test_the_picture_has_the_pegs_of_the_models():
    """`make pictures` draws it again."""
    texts = (ROOT / 'docs/figures/backbones.svg').read_text(encoding='utf-8')
    models = [build(name, arch='small') for name in CLASSES]
    pegs = [len(model.position_encodings[0].layer_ids) for model in models]
    assert texts.count('<!-- PEG -->') == sum(pegs)
