"""Contents of the wheel and the source archive, use of installed configs by other tools, and the
metafiles.
"""

import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml
from digit_scenes import write_scenes

ROOT = Path(__file__).resolve().parents[2]
RECIPES = (
    'imagenet',
    'retinanet',
    'mask_rcnn',
    'semantic_fpn',
    'upernet',
    'detr',
    'dino',
    'mask2former',
    'vitdet',
)
USERS_CONFIGS = {
    'mmdet': (
        """
_base_ = 'cpvt_backbones::retinanet/retinanet_pyramid-cpvt-s_fpn_1x_coco.py'
model = dict(backbone=dict(arch='tiny', frozen_stages=1, init_cfg=None),
    bbox_head=dict(num_classes=7))
train_dataloader = dict(batch_size=5)
"""
    ),
    'mmseg': (
        """
_base_ = ['cpvt_backbones::semantic_fpn/semantic-fpn_multiscale-cpvt-t_8xb4-40k_ade20k-512x512.py']
model = dict(backbone=dict(window_size=7, init_cfg=None), decode_head=dict(num_classes=7))
train_dataloader = dict(batch_size=5)
"""
    ),
}
READ_AND_BUILD = """
import json, sys
import torch
import cpvt_backbones
from cpvt_backbones.toolboxes import read_config
from mmengine.registry import MODELS, init_default_scope

answers = dict(package=cpvt_backbones.__file__)
for scope in ('mmdet', 'mmseg'):
    cfg = read_config(f'my_{scope}.py')
    init_default_scope(cfg.default_scope)
    model = MODELS.build(cfg.model)
    model.init_weights()
    last = model.bbox_head.retina_cls if scope == 'mmdet' else model.decode_head.conv_seg
    answers[scope] = dict(
        scope=cfg.default_scope,
        batch=cfg.train_dataloader.batch_size,
        data=cfg.train_dataloader.dataset.type,
        types=[type(module).__module__.split('.')[0] for module in (model, model.neck,
            model.backbone)],
        backbone=type(model.backbone).__name__,
        frozen=sorted({n.split('.')[0] for n,
            p in model.backbone.named_parameters() if not p.requires_grad}),
        windows=sorted({getattr(b.attn, 'window_size',
            0) for b in model.backbone.blocks}) if scope == 'mmseg' else [],
        out_channels=last.out_channels,
    )
print(json.dumps(answers))
"""


@pytest.fixture(scope='module')
def archives(tmp_path_factory):
    """Folder with the wheel and the source archive of this repository."""
    folder = tmp_path_factory.mktemp('archives')
    subprocess.run(
        [sys.executable, 'setup.py', '-q', 'egg_info', '--egg-base', folder]
        + ['build', '--build-base', folder / 'build']
        + ['bdist_wheel', '--bdist-dir', folder / 'bdist', '--dist-dir', folder]
        + ['sdist', '--formats', 'zip', '--dist-dir', folder],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    return folder


@pytest.fixture(scope='module')
def installed(archives):
    """Folder with the content of the wheel."""
    (wheel,) = archives.glob('*.whl')
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(archives / 'site')
    return archives / 'site'


@pytest.fixture
def run(installed, tmp_path):
    """Run Python with the installed package, in a folder with nothing of the repository."""

    def python(*arguments):
        environment = {
            **os.environ,
            'PYTHONPATH': str(installed),
            'OMP_NUM_THREADS': '1',
            'CUDA_VISIBLE_DEVICES': '',
        }
        done = subprocess.run(
            [sys.executable, '-W', 'ignore', *map(str, arguments)],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
        return done.stdout

    return python


def test_package_configs_tools_and_weights_are_installed(installed):
    inside = installed / 'cpvt_backbones' / '.mim'
    for part in ('configs', 'tools'):
        found = {path.relative_to(inside) for path in (inside / part).rglob('*') if path.is_file()}
        expected = {
            path.relative_to(ROOT)
            for path in (ROOT / part).rglob('*')
            if path.is_file() and '__pycache__' not in path.parts
        }
        scripts_of_a_clone = {Path('tools/setup_env.sh'), Path('tools/compile_operators.sh')}
        assert found == expected - scripts_of_a_clone
    weights = Path('cpvt_backbones/weights')
    names = {
        path.name
        for path in (ROOT / weights).iterdir()
        if path.suffix in ('.json', '.md', '.safetensors')
    }
    assert all(
        (installed / weights / name).read_bytes() == (ROOT / weights / name).read_bytes()
        for name in names
    )
    assert (inside / 'model-index.yml').read_bytes() == (ROOT / 'model-index.yml').read_bytes()
    modules = {
        path.relative_to(installed) for path in installed.rglob('*.py') if '.mim' not in path.parts
    }
    assert modules == {
        path.relative_to(ROOT)
        for path in (ROOT / 'cpvt_backbones').rglob('*.py')
        if '.mim' not in path.parts
    }


def test_wheel_has_no_benchmark_study_or_demo(installed):
    (folder,) = (path.name for path in installed.iterdir() if not path.name.endswith('.dist-info'))
    assert folder == 'cpvt_backbones'
    left_out = {
        path.read_bytes()
        for folder in ('benchmarks', 'demo', 'projects', 'tests')
        for path in (ROOT / folder).rglob('*.py')
    } - {b''}
    scripts = [path for path in installed.rglob('*.py') if 'configs' not in path.parts]
    assert not [str(path) for path in scripts if path.read_bytes() in left_out]
    assert not [
        str(path)
        for path in scripts
        if re.search('benchmark|contestant|demo|study|scenes', path.name)
    ]


def test_source_archive_builds_the_wheel_and_holds_no_more(archives):
    (file,) = archives.glob('*.zip')
    with zipfile.ZipFile(file) as archive:
        names = [name.partition('/')[2] for name in archive.namelist()]
    top = {name.split('/')[0] for name in names} - {''}
    assert {
        'cpvt_backbones',
        'configs',
        'tools',
        'setup.py',
        'pyproject.toml',
        'model-index.yml',
        'LICENSE',
    } <= top
    assert not top & {'benchmarks', 'demo', 'docs', 'projects', 'tests', 'data', 'work_dirs'}


def test_user_config_builds_on_an_installed_one(installed, run, tmp_path):
    pytest.importorskip('mmdet')
    pytest.importorskip('mmseg')
    for scope, text in USERS_CONFIGS.items():
        (tmp_path / f'my_{scope}.py').write_text(text)
    answers = json.loads(run('-c', READ_AND_BUILD).splitlines()[-1])
    assert answers.pop('package') == str(installed / 'cpvt_backbones' / '__init__.py')
    detector, segmentor = answers['mmdet'], answers['mmseg']
    for scope, answer in answers.items():
        assert answer['scope'] == scope
        assert answer['batch'] == 5
        assert answer['types'] == [scope, scope, 'cpvt_backbones']
    assert detector['data'] == 'CocoDataset'
    assert detector['backbone'] == 'PyramidCPVT'
    assert detector['frozen'] == ['blocks', 'patch_embeds', 'pos_block']
    assert detector['out_channels'] == 9 * 7
    assert segmentor['data'] == 'ADE20KDataset'
    assert segmentor['backbone'] == 'MultiScaleCPVT'
    assert segmentor['windows'] == [7]
    assert segmentor['out_channels'] == 7


def test_mmdets_own_tool_trains_an_installed_config(installed, run, tmp_path):
    mmdet = pytest.importorskip('mmdet')
    tool = Path(mmdet.__file__).parent / '.mim' / 'tools' / 'train.py'
    if not tool.is_file():
        pytest.skip(f'mmdet is installed without its tools: there is no {tool}')
    config = (
        installed / 'cpvt_backbones/.mim/configs/retinanet/retinanet_pyramid-cpvt-t_fpn_1x_coco.py'
    )
    scenes = write_scenes(root=tmp_path, split='train', height=48, width=64, count=2)
    labels = scenes / 'instances.json'
    data = json.loads(labels.read_text())
    for category, name in zip(
        data['categories'],
        ('person', 'car', 'dog', 'cat', 'cow', 'cup', 'bed', 'tv', 'bus', 'kite'),
        strict=True,
    ):
        category['name'] = name
    labels.write_text(json.dumps(data))
    options = [
        'train_cfg.max_epochs=1',
        'train_cfg.val_interval=2',
        'train_dataloader.num_workers=0',
        'train_dataloader.persistent_workers=False',
        f'train_dataloader.dataset.data_root={scenes}',
        'train_dataloader.dataset.ann_file=instances.json',
        'train_dataloader.dataset.data_prefix.img=images/',
        'train_dataloader.dataset.pipeline.2.scale=(96,72)',
        'val_cfg=None',
        'val_dataloader=None',
        'val_evaluator=None',
        'default_hooks.logger.interval=1',
        'default_hooks.checkpoint.save_optimizer=False',
        'model.backbone.init_cfg=None',
    ]
    run(tool, config, '--work-dir', tmp_path / 'work', '--cfg-options', *options)
    (log,) = (tmp_path / 'work').glob('*/*.log')
    assert 'Epoch(train) [1][1/1]' in log.read_text()
    assert (tmp_path / 'work' / 'epoch_1.pth').is_file()


# -- metafiles
# --------------------------------------------------------------------------------------------------


def test_the_model_index_lists_the_metafiles():
    index = yaml.safe_load((ROOT / 'model-index.yml').read_text())
    assert sorted(index['Import']) == sorted(f'configs/{folder}/metafile.yml' for folder in RECIPES)


@pytest.mark.parametrize('folder', RECIPES)
def test_metafile_lists_every_recipe(folder):
    metafile = yaml.safe_load((ROOT / 'configs' / folder / 'metafile.yml').read_text())
    collections = {collection['Name'] for collection in metafile['Collections']}
    for collection in metafile['Collections']:
        assert (ROOT / collection['README']).is_file()
    listed = [ROOT / model['Config'] for model in metafile['Models']]
    assert sorted(listed) == sorted((ROOT / 'configs' / folder).glob('*.py'))
    for model in metafile['Models']:
        assert model['Name'] == Path(model['Config']).stem
        assert model['In Collection'] in collections
