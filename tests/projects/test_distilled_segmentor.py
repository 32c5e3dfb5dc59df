"""The distilled segmentor: the teacher's tokens are those of the crop, and what the loss of them is."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from tiny import COLUMN

pytest.importorskip('mmseg')

from distilled_segmentor import tokens as module
from distilled_segmentor.model import TeacherTokens, TokenDistillation
from mmengine.dataset import Compose
from mmengine.registry import MODELS, init_default_scope
from mmengine.structures import PixelData
from mmseg.structures import SegDataSample

from cpvt_backbones.engine.launch import read_config

CONFIGS = 'projects/distilled_segmentor/configs', 'configs/camvid'


@pytest.fixture
def store(monkeypatch, source, image_folders, tmp_path):
    """Store a tiny model's tokens of the training images."""
    monkeypatch.setattr(module, 'read_clip', lambda file: dict(source.weights))
    monkeypatch.setattr(module, 'MODEL', source.backbone)
    for file in (image_folders / 'train/1').iterdir():
        file.rename(file.with_name(f'1_{file.name}'))

    def run(words=''):
        module.main(f'--clip none --images {image_folders}/train --out {tmp_path}/out --shape 24x32 {words}'.split())
        return tmp_path / 'out'

    return run


def test_stored_tokens_are_those_of_the_images(store, source, monkeypatch):
    out = store('--every 2')
    names = (out / 'names.txt').read_text().splitlines()
    tokens = np.load(out / 'tokens.npy')
    assert len(names) == 8 and tokens.shape == (8, 3, 4, 24)
    model = module.Source(source.backbone, source.weights, module.MEAN, module.STD).build(module.TABLE).eval()
    for name, stored in zip(names, tokens, strict=True):
        pixels = torch.from_numpy(np.array(Image.open(out / f'images/{name}.png'))).permute(2, 0, 1)[None]
        with torch.inference_mode():
            (found,) = model(module.prepare(pixels, (24, 32), module.MEAN, module.STD))
        torch.testing.assert_close(torch.from_numpy(stored).flatten(0, 1).float(), found[0, 1:], rtol=1e-3, atol=1e-3)
    before = (out / 'tokens.npy').read_bytes()
    stored = np.load(out / 'tokens.npy', mmap_mode='r+')
    stored[4:] = 0
    stored.flush()
    (out / 'tokens.rows').write_text('4')  # interrupted after a chunk
    assert (store('--every 2') / 'tokens.npy').read_bytes() == before
    with pytest.raises(ValueError, match='was begun with'):
        store()


def test_bad_input_of_the_tokens(store, image_folders):
    with pytest.raises(ValueError, match='--shape: multiples of 8 px are expected, got 20x32'):
        store('--shape 20x32')
    with pytest.raises(ValueError, match=r'--images: names must differ, got .*train.*0\.png and .*val.*0\.png'):
        store(f'--images {image_folders}/train {image_folders}/val/0')
    with pytest.raises(ValueError, match='--images: names must differ'):
        store(f'--images {image_folders}/train {image_folders}/train')
    store()  # nothing was written before


@pytest.fixture
def gradient(tmp_path):
    """An image whose red is the column and whose green is the row, and tokens that are the same."""
    x, y = np.meshgrid(np.linspace(0, 255, 480), np.linspace(0, 255, 352))
    (tmp_path / 'tokens/images').mkdir(parents=True)
    file = tmp_path / 'tokens/images/one.png'
    Image.fromarray(np.stack([x, y, 0 * x], axis=-1).round().astype(np.uint8)).save(file)
    patches = torch.from_numpy(np.stack([x, y])[None])
    tokens = F.avg_pool2d(patches, 16)[0].permute(1, 2, 0)[None].numpy().astype(np.float16)
    np.save(tmp_path / 'tokens/tokens.npy', tokens)
    (tmp_path / 'tokens/names.txt').write_text('one\n')
    return file


@pytest.mark.parametrize('turn', range(6))
def test_tokens_follow_resize_crop_and_flip(gradient, turn):
    init_default_scope('mmseg')
    np.random.seed(turn)
    folder = str(gradient.parents[1])
    pipeline = read_config(f'{CONFIGS[0]}/semantic-fpn_cpvt-tiny-gap_camvid.py').train_dataloader.dataset.datasets[2]
    steps = [step for step in pipeline.pipeline if step['type'] != 'PhotoMetricDistortion']
    steps = [dict(step, folder=folder) if step['type'] == 'TeacherTokens' else step for step in steps]
    packed = Compose(steps)(dict(img_path=str(gradient), seg_fields=[], reduce_zero_label=False))
    image, tokens = packed['inputs'].flip(0), packed['data_samples'].teacher_tokens
    assert packed['data_samples'].gt_sem_seg.data.unique().tolist() == [11]
    height, width = image.shape[-2:]
    assert tokens.shape == (2, (height + 7) // 16, (width + 7) // 16)
    centres = image[:2, 8::16, 8::16].float()
    # Tokens of the border are constant beyond their centres: 8 px of 352, 5.8 of 255. Inside, half a pixel, two
    # roundings, and what nearest-neighbour resizing to half the size moves: a pixel, 0.7.
    inside = ((centres > 6) & (centres < 249)).all(dim=0)
    assert inside.sum() > inside.numel() / 2
    assert ((tokens - centres).abs()[:, inside] < 2.5).all()
    assert ((tokens - centres).abs() < 8.5).all()


def build(config, **options):
    init_default_scope('mmseg')
    torch.manual_seed(0)
    model = read_config(f'{config}/semantic-fpn_cpvt-tiny-gap_camvid.py').model
    model.backbone.update(arch=COLUMN, init_cfg=None, drop_path_rate=0.0)
    model.backbone.position.after_blocks = (0,)
    model.neck.in_channels = [6, 12, 24, 24]
    model.update(options)
    return MODELS.build(model)


def test_the_loss_of_the_tokens_leaves_out_the_padding():
    model = build(CONFIGS[0], teacher_dims=5)
    assert isinstance(model, TokenDistillation)
    inputs = torch.randn(2, 3, 64, 96)
    tokens = [torch.randn(5, 4, 6), torch.randn(5, 3, 2)]
    samples = []
    for one in tokens:
        sample = SegDataSample(metainfo=dict(teacher_tokens=one, img_shape=(64, 96)))
        sample.gt_sem_seg = PixelData(data=torch.full((1, 64, 96), 11))
        samples.append(sample)
    losses = model.loss(inputs, samples)
    found = model.to_teacher(model.backbone(inputs)[2])
    found = torch.cat([found[0].flatten(1), found[1, :, :3, :2].flatten(1)], dim=1).T
    wanted = torch.cat([one.flatten(1) for one in tokens], dim=1).T
    wanted = (wanted - wanted.mean(0)) / wanted.std(0, correction=0)
    expected = 1 - (F.normalize(found, dim=1) * F.normalize(wanted, dim=1)).sum(1).mean()
    torch.testing.assert_close(losses['loss_tokens'], expected, rtol=1e-4, atol=1e-5)
    assert losses['decode.loss_ce'] == 0, 'no pixel has a label'
    losses['loss_tokens'].backward()
    assert all(parameter.grad is not None for parameter in model.backbone.patch_embed.parameters())


@pytest.mark.parametrize('wrong', [dict(index=1), dict(index=9), dict(teacher_dims=0), dict(weight=-1.0)], ids=str)
def test_bad_arguments_of_the_loss(wrong):
    (name, value), *_ = wrong.items()
    with pytest.raises((ValueError, TypeError), match=f'{name} must be .*{value}'):
        build(CONFIGS[0], **wrong)


def test_an_image_without_tokens(gradient):
    step = TeacherTokens(str(gradient.parents[1]))
    with pytest.raises(ValueError, match=r"folder: '.*' has no tokens of 'two words\.png'"):
        step.transform(dict(img_path='two words.png', places=None))
    with pytest.raises(FileNotFoundError, match=r"folder: there is no 'none/names\.txt'"):
        TeacherTokens('none')


def test_the_plain_segmentor_has_its_weights():
    mine, plain = (build(folder) for folder in CONFIGS)
    missing, more = plain.load_state_dict(mine.state_dict(), strict=False)
    assert not missing and {name.split('.')[0] for name in more} == {'to_teacher'}
