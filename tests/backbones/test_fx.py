"""torch.fx: a backbone is a leaf of a traced model.

Within it, sizes are computed, which tracing does not record.
"""

import pytest
import torch
from tiny import column, pyramid
from torch import nn

feature_extraction = pytest.importorskip('torchvision.models.feature_extraction')


@pytest.mark.parametrize('build', [column, pyramid])
def test_features_of_a_model_around_a_backbone(build):
    backbone = build().eval()

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.backbone = backbone
            self.head = nn.Conv2d(backbone.out_channels[-1], 2, 1)

        def forward(self, images):
            return self.head(self.backbone(images)[-1])

    images = torch.randn(1, 3, 50, 70)
    leaf = dict(tracer_kwargs=dict(leaf_modules=[type(backbone)]))
    extractor = feature_extraction.create_feature_extractor(Model(), ['backbone'], **leaf)
    for found, expected in zip(extractor(images)['backbone'], backbone(images), strict=True):
        assert torch.equal(found, expected)


def test_tracing_a_backbone_is_refused():
    with pytest.raises(TypeError, match='images must be a torch.Tensor .*, got Proxy'):
        feature_extraction.create_feature_extractor(column(), ['patch_embed'])
