"""EoMT as a graph: masks and classes of all queries, or the classes of the pixels, at any size."""

import numpy as np
import pytest
import torch
from tiny import build, eomt, eomt_segmentor, only, randomise

from cpvt_backbones.errors import InputError
from cpvt_backbones.export import ExportedModel, MaskQueries, export, graph_of

SIZES = [(64, 64), (33, 51), (97, 20)]


def trained(make):
    torch.manual_seed(0)
    model = randomise(build(make())).eval()
    head = getattr(model, 'panoptic_head', None) or model.decode_head
    head.attn_mask_probs.zero_()
    return model


def pixels(batch, size):
    shape = (batch, 3, *size)
    return torch.randint(
        0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )


def normalised(model, images):
    settings = model.data_preprocessor
    return (images.flip(1).float() - settings.mean) / settings.std


def test_outputs_are_the_models():
    model = trained(eomt)
    graph = graph_of(model)
    assert isinstance(graph, MaskQueries) and graph.output_names == ('masks', 'classes')
    for size in SIZES:
        images = pixels(2, size)
        with torch.no_grad():
            masks, classes = graph(images)
            wanted = model.extract_feat(normalised(model, images))[-1]
        torch.testing.assert_close((masks, classes), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize('make', [eomt, eomt_segmentor])
def test_masked_attention_is_refused(make):
    model = trained(make)
    head = getattr(model, 'panoptic_head', None) or model.decode_head
    head.attn_mask_probs[1] = 0.7
    with pytest.raises(InputError, match='train to the end of MaskAnnealingHook'):
        graph_of(model)


FORMATS = {'torch_export': 'model.pt2', 'onnx': 'model.onnx'}


@pytest.mark.parametrize('kind', FORMATS)
@pytest.mark.parametrize('make', only(of=[eomt, eomt_segmentor]))
@pytest.mark.full
def test_one_file_for_all_sizes(kind, make, tmp_path):
    if kind == 'onnx':
        pytest.importorskip('onnxscript')
        pytest.importorskip('onnxruntime')
    model = trained(make)
    graph = graph_of(model, **({} if make is eomt else dict(logits=True)))
    export(graph, tmp_path / FORMATS[kind], format=kind)
    exported = ExportedModel(tmp_path / FORMATS[kind])
    for batch, size in zip((1, 3, 2), SIZES, strict=True):
        images = pixels(batch, size)
        with torch.no_grad():
            wanted = graph(images)
        arrays = list(images.permute(0, 2, 3, 1).numpy())
        if make is eomt_segmentor:
            found = exported.logits(arrays)
            torch.testing.assert_close(found, wanted[0], rtol=1e-4, atol=1e-4)
            continue
        found = exported.predict(arrays)
        assert len(found) == batch
        for index, one in enumerate(found):
            for array, right in zip(one['features'], wanted, strict=True):
                np.testing.assert_allclose(array, right[index].numpy(), rtol=1e-4, atol=1e-4)
