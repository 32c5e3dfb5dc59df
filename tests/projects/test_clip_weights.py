"""CLIP ViT-B/16 with its real weights, where the package that has them is installed."""

import pytest
import torch
from any_size_vit.clip_int8 import MEAN, STD, installed_file, main, read_clip
from tiny import max_difference

from cpvt_backbones import CPVT

NAME = 'vit_base_patch16_clip_quickgelu_224.openai'


@pytest.fixture(scope='module')
def file(tmp_path_factory):
    pytest.importorskip('onnx')
    try:
        installed_file()
    except FileNotFoundError as error:
        pytest.skip(str(error))
    file = tmp_path_factory.mktemp('clip') / f'{NAME}.safetensors'
    main([str(file)])
    return file


def photographs(size):
    """Three photographs of scikit-image, (3, 3, H, W), normalised as CLIP was trained."""
    data = pytest.importorskip('skimage.data')
    resize = torch.nn.functional.interpolate
    arrays = (data.astronaut(), data.coffee(), data.rocket())
    images = [torch.from_numpy(array).permute(2, 0, 1)[None] / 255 for array in arrays]
    images = torch.cat([resize(image, size, mode='bicubic', antialias=True) for image in images])
    return (images - torch.tensor(MEAN)[:, None, None]) / torch.tensor(STD)[:, None, None]


@pytest.mark.slow
def test_clip_computes_what_timm_computes_at_any_size(file, record_property):
    timm = pytest.importorskip('timm')
    theirs = timm.create_model(
        NAME.partition('.')[0], num_classes=512, dynamic_img_size=True
    ).eval()
    theirs.load_state_dict(read_clip(installed_file()))
    ours = CPVT.from_pretrained(str(file), out_type='raw').eval()
    position = [dict(type='Learned'), dict(type='PEG', after_blocks=(0, 1, 2, 3, 4))]
    with_pegs = CPVT.from_pretrained(str(file), out_type='raw', position=position).eval()
    features = []
    for size in ((224, 224), (320, 480)):
        images = photographs(size)
        with torch.inference_mode():
            (got,), want = ours(images), theirs.forward_features(images)
            features.append(torch.nn.functional.normalize(theirs.forward_head(got), dim=-1))
        difference = max_difference(got, want) / want.abs().max().item()
        record_property(f'{size[0]}x{size[1]}', f'{difference:.1e}')
        assert difference <= 1e-5
    with torch.inference_mode():
        assert torch.equal(
            with_pegs(images[:1])[0], ours(images[:1])[0]
        )  # each PEG starts as the identity
    # The weights mean something: a photograph is next to itself at the other size.
    assert (features[0] @ features[1].T).argmax(dim=1).tolist() == [0, 1, 2]
