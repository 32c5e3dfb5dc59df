"""Adapting a ViT to many sizes: its parts, its resumption, and its report."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

pytest.importorskip('sklearn')

from any_size_vit import clip_int8
from any_size_vit import study as study_module
from any_size_vit.adapt import Recipe, adapt
from any_size_vit.clip_int8 import MEAN, installed_file, read_clip
from any_size_vit.reasons import explain, fit_places, look, places, read_places, read_reasons
from any_size_vit.report import interval, read_results, values, wilson, write_report
from any_size_vit.run import main
from any_size_vit.segmentation import (
    miou,
    overlaps,
    pack,
    read_segmentation,
    resampled,
    segment,
    unpack,
)
from any_size_vit.stored import stored_array
from any_size_vit.student import POSITIONS, TABLE
from any_size_vit.study import AdaptRun, Study
from sklearn.metrics import jaccard_score
from tiny import max_difference

from cpvt_backbones import CPVT
from cpvt_backbones.checkpoints import read_checkpoint

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def pixels():
    return torch.randint(0, 256, (6, 3, 32, 32), dtype=torch.uint8)


def test_a_student_starts_as_its_teacher_or_without_a_table_with_its_mean(source):
    whole = source.build(TABLE).eval()
    for side in (16, 32, 44):
        images = torch.randn(2, 3, side, side)
        for variant in ('table', 'table+peg'):
            student = source.build(POSITIONS[variant]).eval()
            torch.testing.assert_close(student(images)[0], whole(images)[0])
    constant = source.weights['pos_embed'].clone()
    constant[:, 1:] = constant[:, 1:].mean(dim=1, keepdim=True)
    teacher = replace(source, weights={**source.weights, 'pos_embed': constant}).build(TABLE).eval()
    images = torch.randn(2, 3, 24, 40)
    for variant in ('none', 'peg'):
        student = source.build(POSITIONS[variant]).eval()
        torch.testing.assert_close(student(images)[0], teacher(images)[0])


def test_an_interrupted_training_continues_to_the_same_weights(
    source, pixels, tmp_path, monkeypatch
):
    teacher = source.build(TABLE).eval()
    with torch.inference_mode():
        targets = teacher((pixels / 255 - 0.5) / 0.25)[0].numpy()
    recipe = Recipe(sizes=(16, 32), steps=8, batch_size=4)

    def stop(text):
        if text.startswith('step 3 '):
            raise KeyboardInterrupt

    monkeypatch.setattr('any_size_vit.adapt.SAVE_EVERY', 0.0)
    found = []
    for folder, note in (('whole', lambda text: None), ('broken', stop)):
        torch.manual_seed(0)
        student = source.build(POSITIONS['peg'])
        arguments = (source, pixels, targets, recipe, tmp_path / folder / 'checkpoint.pth')
        try:
            losses = adapt(student, *arguments, note=note)
        except KeyboardInterrupt:
            student = source.build(POSITIONS['peg'])
            losses = adapt(student, *arguments, note=lambda text: None)
        found.append((losses, student.state_dict()))
    (losses, weights), (other, others) = found
    assert losses == other and len(losses) == 8 and losses[-1] < losses[0]
    assert all(value.equal(others[name]) for name, value in weights.items())


def test_stored_rows_are_computed_once(tmp_path):
    calls = []

    def compute(start, end):
        calls.append((start, end))
        if len(calls) == 2:
            raise KeyboardInterrupt
        return torch.arange(start, end)[:, None] * torch.ones(1, 3)

    file = tmp_path / 'rows.npy'
    with pytest.raises(KeyboardInterrupt):
        stored_array(file, (5, 3), compute, chunk=2)
    for _ in range(2):
        assert stored_array(file, (5, 3), compute, chunk=2)[:, 0].tolist() == [0, 1, 2, 3, 4]
    assert calls == [(0, 2), (2, 4), (2, 4), (4, 5)]
    with pytest.raises(ValueError, match=r'holds an array of \(5, 3\), got \(6, 3\)'):
        stored_array(file, (6, 3), compute)


@pytest.fixture
def study(source, image_folders, tmp_path, monkeypatch):
    small = dict(TEACHER_SIDE=32, GALLERY=1, QUERIES=2, TEST_SIZES={16: 1, 32: 2})
    for name, value in small.items():
        monkeypatch.setattr(study_module, name, value)
    plan = dict(images=4, sizes=[16, 32], single=24, steps=4, precision='fp32')
    plan['data'] = str(image_folders)

    def make(folder, *runs):
        return Study(tmp_path / folder, plan, [AdaptRun(*run) for run in runs], source)

    return make


def test_a_seed_gives_the_same_rows_and_an_untrained_table_is_the_teacher(study):
    runs = [('table', 'untrained', 0), ('rope', 'single', 3)]
    first, again = study('first', *runs), study('again', *runs)
    for each in (first, again):
        each.work()
        assert each.left() == 0
    for run in first.runs:
        rows, others = (each.record(run)['rows'] for each in (first, again))
        for row in rows + others:
            row.pop('training_s')
            row.pop('testing_s')
        assert rows == others and [row['size'] for row in rows] == [16, 32]
    assert set(first.record(first.runs[0])['rows'][1]['cosines'].split()) == {'1000'}


def test_the_study_runs_small(study, image_folders, scenes, tmp_path, monkeypatch):
    """Reasons, other data and the segmentor are of finished runs alone, and computed once."""
    one = study('one', ('table', 'untrained', 0), ('peg', 'mixed', 0))
    one.work()
    runs = [*one.runs, AdaptRun('none', 'mixed', 0)]

    explain(one, runs, sizes=(16, 32))
    reasons = read_reasons(one.folder)
    names = [(row['variant'], row['size']) for row in reasons]
    assert names == [('peg', 16), ('peg', 32), ('table', 16), ('table', 32)]
    for row in reasons:
        assert row['processor'] and row['commit'] and row['precision'] == 'fp32'
        assert row['place'] <= 1 and 0 < row['distance'] < 2**0.5 and 0 < row['entropy'] <= 1
    explain(one, runs, sizes=(24,))
    assert read_reasons(one.folder) == reasons

    monkeypatch.setattr('any_size_vit.segmentation.STEPS', 200)
    segment(one, runs, scenes, size=(60, 80))  # 60 px: the last row of patches is padded
    dense = read_segmentation(one.folder)
    assert [(row['variant'], row['size'], row['images']) for row in dense] == [
        (variant, size, 4) for variant in ('peg', 'table') for size in (0.5, 1, 1.5, 2)
    ]
    for row in dense[1::4]:
        both, either = unpack(row['counts']).sum(axis=(0, 2))
        assert both / ((both + either) / 2) > 0.8, 'of the pixels at the size of the training'
    file = one.folder / runs[0].name / 'segmentation.json'
    whole = file.read_text()
    file.write_text(json.dumps(json.loads(whole)[:2]))  # interrupted after two sizes
    segment(one, runs, scenes, size=(60, 80))
    assert file.read_text() == whole

    shutil.copytree(image_folders / 'val', tmp_path / 'other/val')
    first = sorted((tmp_path / 'other/val').iterdir())[0]
    shutil.copytree(first, first.with_name('another'))
    monkeypatch.setattr(study_module, 'TEST_SIZES', {16: 1, 32: 2, 48: 2})
    one.probe(runs, tmp_path / 'other')
    with monkeypatch.context() as patch:
        patch.setattr(Study, 'test', lambda *_: pytest.fail('tested again'))
        one.probe(runs, tmp_path / 'other')
    other = replace(one, folder=one.folder / study_module.OTHER, plan=None)
    found = [other.record(run) for run in runs]
    assert found[2] is None and [len(record['rows']) for record in found[:2]] == [2, 2]
    queries = one.record(runs[0])['rows'][0]['queries']
    assert found[0]['rows'][0]['queries'] == queries * 3 // 2
    with pytest.raises(ValueError, match='was begun with'):
        one.probe(runs, image_folders)

    write_report(one.folder)
    text = (one.folder / 'report.md').read_text()
    for part in ('PEG 0-5', '### On other\n', '**Why**', 'Minus that of the table'):
        assert part in text
    assert len(list(one.folder.glob('any_size_vit*.png'))) == 2


def test_on_the_studys_own_data_the_results_are_its_own(study, image_folders):
    one = study('one', ('table', 'untrained', 0), ('peg', 'mixed', 0))
    one.work()
    one.probe(one.runs, image_folders)
    other = replace(one, folder=one.folder / study_module.OTHER, plan=None)
    for run in one.runs:
        for row, own in zip(other.record(run)['rows'], one.record(run)['rows'], strict=True):
            assert row.pop('data') == 'data'
            assert row == {name: own[name] for name in row}

    write_report(one.folder)
    results = one.folder / 'any_size_vit.csv'
    last = results.read_text().splitlines()[-1]
    results.write_text(results.read_text() + last.replace('fp32', 'bf16'))
    (one.folder / one.runs[0].name / 'record.json').unlink()  # the last of the file
    with pytest.raises(ValueError, match='different precisions'):
        write_report(one.folder)


def test_the_probe_reads_places_that_are_in_the_tokens():
    rng = np.random.default_rng(0)
    fine, coarse = (rng.normal(size=(8, side, side, 6)) for side in (14, 5))
    assert read_places(fit_places(fine), fine) < 0.1, 'noise has no place'
    for tokens in (fine, coarse):
        tokens[..., :2] = 10 * places(tokens).reshape(*tokens.shape[:3], 2)
    assert read_places(fit_places(fine), coarse) > 0.9
    assert places(coarse)[7].tolist() == [0.3, 0.5]


def test_attention_without_preference_is_uniform(study, source, pixels):
    model = source.build(None)
    for name, parameter in model.named_parameters():
        if 'qkv' in name:
            torch.nn.init.zeros_(parameter)
    found = look(study('none'), model.eval(), pixels[:2], 32)
    cells = torch.cartesian_prod(torch.arange(4.0), torch.arange(4.0)) / 4
    assert found == dict(distance=round(torch.cdist(cells, cells).mean().item(), 4), entropy=1.0)


def test_mean_iou_is_that_of_a_confusion_matrix():
    rng = np.random.default_rng(0)
    images = [
        [torch.from_numpy(rng.integers(0, high, (1, 9, 7))) for high in (11, 12)] for _ in range(8)
    ]
    blocks = unpack(pack([overlaps(*pair) for pair in images]))
    assert blocks.shape == (2, 2, 11)
    found, labels = (torch.cat(part).flatten().numpy() for part in zip(*images, strict=True))
    expected = jaccard_score(labels[labels < 11], found[labels < 11], average='macro')
    assert miou(blocks) == pytest.approx(100 * expected)
    assert resampled([blocks], blocks) == (0, 0)
    low, high = resampled([blocks + [[[9]], [[9]]]], blocks)
    assert 0 < low <= high


def test_the_page_is_reproduced_from_its_csv_files(tmp_path):
    shutil.copytree(ROOT / 'docs/evidence', tmp_path / 'evidence')
    write_report(tmp_path / 'nowhere', tmp_path / 'evidence')
    page = 'evidence/clip.md'
    assert (tmp_path / page).read_text() == (ROOT / 'docs' / page).read_text()


def test_what_to_choose_has_the_figures_of_the_csv():
    """Row 2 has enlargement as its baseline, and RoPE and PEG are compared on one processor."""
    folder = ROOT / 'docs/evidence'
    table = read_results(folder / 'any_size_vit_other.csv')

    def percent(variant, training, size):
        (sample,) = values(table, 'neighbours', variant, training)[size]
        return f'{sample.mean():.1f} %'

    enlarged, adapted = percent('table', 'untrained', 224), percent('table', 'mixed', 64)
    page = (ROOT / 'docs/evidence.md').read_text()
    assert f'{enlarged} enlarged, {adapted} adapted at 64 px (one seed)' in page
    assert f'{adapted} of 100 other classes' in page
    assert f'not adapted {percent("table", "untrained", 64)} (one seed)' in page
    own = read_results(folder / 'any_size_vit.csv')
    table_cosine, *others = (
        values(own, 'cosines', variant, 'mixed')[224].mean() for variant in ('table', 'peg', 'rope')
    )
    behind = 'PEG is {:.0f}, RoPE {:.0f}'.format(*(table_cosine - other for other in others))
    assert f'at 224 px {behind} points of cosine behind' in page
    clip = ' '.join((folder / 'clip.md').read_text().split())
    rope, peg = (percent(variant, 'mixed', 224) for variant in ('rope', 'peg'))
    assert f'RoPE finds {rope} and PEG {peg} at 224 px' in clip
    runs = pd.read_csv(folder / 'any_size_vit_other_runs.csv')
    compared = runs[runs['variant'].isin(['peg', 'rope']) & runs['training'].eq('mixed')]
    assert len(compared) == 2 and compared['processor'].nunique() == 1


def test_a_command_adapts_ones_own_model(source, image_folders, write_config, tmp_path):
    pytest.importorskip('mmpretrain')
    weights = tmp_path / 'weights.pth'
    torch.save(dict(source.weights), weights)
    position = [TABLE, dict(type='PEG', after_blocks=[0])]
    backbone = dict(type='CPVT', **source.backbone, position=position)
    content = dict(default_scope='mmpretrain', model=dict(backbone=backbone))
    content['data_preprocessor'] = dict(mean=[127.5] * 3, std=[63.75] * 3)

    def run(out):
        config = write_config('own', content)
        words = f'adapt --config {config} --weights {weights} --images {image_folders}/train'
        words += f' --sizes 16 24 --steps 3 --work-dir {tmp_path}/work --out {out}'
        main(words.split())

    for _ in range(2):  # the second one continues
        run(tmp_path / 'adapted.pth')
    model = CPVT(**source.backbone, position=position)
    model.load_state_dict(read_checkpoint(tmp_path / 'adapted.pth')['state_dict'])
    assert not torch.equal(model.pos_embed.get_parameter('0'), source.weights['pos_embed'])
    torch.save(dict(source.weights, cls_token=2 * source.weights['cls_token']), weights)
    with pytest.raises(ValueError, match='was begun with'):
        run(tmp_path / 'other.pth')
    backbone['with_cls_token'] = False
    with pytest.raises(ValueError, match='must be a CPVT with a class token'):
        run(tmp_path / 'other.pth')


def test_clip_is_dequantised(tmp_path):
    """A weight is (quantised - zero point) * scale, transposed, under timm's name."""
    onnx = pytest.importorskip('onnx')
    rng, stored, nodes, wanted = np.random.default_rng(0), {}, [], {}
    dim, hidden, out = 4, 8, 3

    def plain(name, *shape):
        stored[f'vision_model.{name}'] = rng.normal(size=shape).astype(np.float32)
        return torch.from_numpy(stored[f'vision_model.{name}'])

    def linear(node, inputs, outputs):
        name = f'onnx::MatMul_{len(nodes)}'
        quantised = rng.integers(-128, 128, (inputs, outputs)).astype(np.int8)
        zero = rng.integers(-9, 9, outputs).astype(np.int8)
        scale = rng.random(outputs).astype(np.float32)
        parts = dict(quantized=quantised, zero_point=zero, scale=scale)
        stored.update({f'{name}_{part}': value for part, value in parts.items()})
        arguments = ['x', f'{name}_quantized', 'z', f'{name}_zero_point']
        named = dict(name=f'{node}/MatMul_quant')
        nodes.append(onnx.helper.make_node('MatMulInteger', arguments, ['y'], **named))
        return torch.from_numpy((quantised.astype(np.float32) - zero) * scale).T

    wanted['cls_token'] = plain('embeddings.class_embedding', dim).view(1, 1, dim)
    wanted['patch_embed.proj.weight'] = plain('embeddings.patch_embedding.weight', dim, 3, 16, 16)
    wanted['pos_embed'] = plain('embeddings.position_embedding.weight', 5, dim)[None]
    norms = {'norm_pre': 'pre_layrnorm', 'norm': 'post_layernorm'}
    for index in range(12):
        layer, block = f'encoder.layers.{index}', f'blocks.{index}'
        path = f'/vision_model/{layer.replace(".layers.", "/layers.")}'
        biases = {one: plain(f'{layer}.self_attn.{one}_proj.bias', dim) for one in 'kvq'}
        wanted[f'{block}.attn.qkv.bias'] = torch.cat([biases[one] for one in 'qkv'])
        weights = [linear(f'{path}/self_attn/{one}_proj', dim, dim) for one in 'qkv']
        wanted[f'{block}.attn.qkv.weight'] = torch.cat(weights)
        for ours, theirs, inputs, outputs in (
            ('attn.proj', 'self_attn.out_proj', dim, dim),
            ('mlp.fc1', 'mlp.fc1', dim, hidden),
            ('mlp.fc2', 'mlp.fc2', hidden, dim),
        ):
            wanted[f'{block}.{ours}.bias'] = plain(f'{layer}.{theirs}.bias', outputs)
            node = f'{path}/{theirs.replace(".", "/")}'
            wanted[f'{block}.{ours}.weight'] = linear(node, inputs, outputs)
        norms |= {f'{block}.norm{norm}': f'{layer}.layer_norm{norm}' for norm in '12'}
    for ours, theirs in norms.items():
        for kind in ('weight', 'bias'):
            wanted[f'{ours}.{kind}'] = plain(f'{theirs}.{kind}', dim)
    wanted['head.weight'] = linear('/visual_projection', dim, out)
    wanted['head.bias'] = torch.zeros(out)
    values = [onnx.numpy_helper.from_array(value, name) for name, value in stored.items()]
    graph = onnx.helper.make_graph(nodes, 'clip', [], [], values)
    onnx.save(onnx.helper.make_model(graph), tmp_path / 'clip.onnx')

    found = read_clip(tmp_path / 'clip.onnx')
    assert found.keys() == wanted.keys()
    assert all(found[name].equal(value) for name, value in wanted.items())


def test_clip_is_read_from_no_other_file(tmp_path, monkeypatch):
    (tmp_path / 'other.onnx').write_bytes(b'of the next release')
    installed = SimpleNamespace(locate_file=lambda name: tmp_path / 'other.onnx')
    monkeypatch.setattr(clip_int8, 'distribution', lambda name: installed)
    with pytest.raises(ValueError, match="SHA-256 of '.*other.onnx' must be 2d2da5e2"):
        installed_file()


@pytest.mark.slow
def test_clip_computes_what_timm_computes_at_any_size(tmp_path):
    """With its real weights, where the package that has them is installed."""
    timm, data = pytest.importorskip('timm'), pytest.importorskip('skimage.data')
    try:
        weights = read_clip(installed_file())
    except FileNotFoundError as error:
        pytest.skip(str(error))
    name = 'vit_base_patch16_clip_quickgelu_224'
    clip_int8.main([str(tmp_path / f'{name}.openai.safetensors')])
    theirs = timm.create_model(name, num_classes=512, dynamic_img_size=True).eval()
    theirs.load_state_dict(weights)
    ours = CPVT.from_pretrained(f'{tmp_path}/{name}.openai.safetensors', out_type='raw').eval()
    features = []
    for size in ((224, 224), (320, 480)):
        images = []
        for array in (data.astronaut(), data.coffee(), data.rocket()):
            image = torch.from_numpy(array).permute(2, 0, 1)[None] / 255
            images.append(torch.nn.functional.interpolate(image, size, mode='bicubic'))
        pixels = (torch.cat(images) - torch.tensor(MEAN)[:, None, None]) / 0.27
        with torch.inference_mode():
            (found,), expected = ours(pixels), theirs.forward_features(pixels)
            features.append(torch.nn.functional.normalize(theirs.forward_head(found), dim=-1))
        assert max_difference(found, expected) <= 1e-5 * expected.abs().max()
    # A photograph is next to itself at the other size.
    assert (features[0] @ features[1].T).argmax(dim=1).tolist() == [0, 1, 2]


def test_intervals_are_wilsons_of_a_share_and_never_empty_of_a_difference():
    stats = pytest.importorskip('scipy.stats')
    for hits in (0, 7, 25):
        sample = np.array([[100.0] * hits + [0.0] * (25 - hits)])
        expected = stats.binomtest(hits, 25).proportion_ci(method='wilson')
        # 1.96 stands for 1.95996; the bounds are of the order of 100.
        bounds = 100 * expected.low, 100 * expected.high
        np.testing.assert_allclose(wilson(sample), bounds, atol=1e-2)
    assert interval(np.zeros((1, 25)), pairs=True) == pytest.approx(1.96 * (1e4 / 26 / 27) ** 0.5)
    same, apart = np.zeros((2, 25)), np.repeat([[0.0], [4.0]], 25, axis=1)
    assert interval(same) == 0
    assert interval(apart) == pytest.approx(1.96 * (8 / 2) ** 0.5)
