"""Contents of the wheel and the source archive, use of installed configs by other tools, and the
metafiles.
"""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image

ROOT = Path(__file__).resolve().parents[2]
RECIPES = (
    'imagenet retinanet mask_rcnn semantic_fpn upernet detr dino mask2former vitdet eomt'.split()
)
# A script of one's own: mmengine's Runner, and the interfaces of mmdet and mmseg.
OWN_SCRIPT = """
import cpvt_backbones
from cpvt_backbones.weights import find_shipped
from mmengine.config import Config
from mmengine.registry import RUNNERS

cfg = Config.fromfile('mine/detector.py')
cfg.work_dir = 'own'
cfg.train_cfg.max_iters = 1
for name in ('train_dataloader', 'val_dataloader'):
    cfg[name].update(num_workers=0, persistent_workers=False)
RUNNERS.build(cfg).train()

from mmdet.apis import DetInferencer
from mmseg.apis import MMSegInferencer, inference_model, init_model

detector = DetInferencer('mine/detector.py', 'own/iter_1.pth', device='cpu', show_progress=False)
print('predictions:', len(detector('photos/1.png', no_save_vis=True)['predictions']))
shipped = find_shipped('semantic_fpn_cpvt_tiny_gap-camvid')
config = str(shipped.config_file)
segmentor = init_model(config, shipped.name, device='cpu')
print('map:', *inference_model(segmentor, 'photos/1.png').pred_sem_seg.data.shape)
inferencer = MMSegInferencer(config, shipped.name, device='cpu')
print('map:', *inferencer('photos/1.png')['predictions'].shape)
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
    def files(root, folder):
        found = {path.relative_to(root) for path in (root / folder).rglob('*') if path.is_file()}
        return {path for path in found if not {'__pycache__', '.mim'} & {*path.parts}}

    inside = installed / 'cpvt_backbones' / '.mim'
    scripts_of_a_clone = {Path('tools/setup_env.sh'), Path('tools/compile_operators.sh')}
    for part in ('configs', 'tools'):
        assert files(inside, part) == files(ROOT, part) - scripts_of_a_clone
    assert (inside / 'model-index.yml').read_bytes() == (ROOT / 'model-index.yml').read_bytes()
    assert files(installed, 'cpvt') == files(ROOT, 'cpvt')
    expected = files(ROOT, 'cpvt_backbones')
    assert files(installed, 'cpvt_backbones') == expected
    assert Path('cpvt_backbones/py.typed') in expected
    for path in expected:
        if path.parent.name == 'weights':
            assert (installed / path).read_bytes() == (ROOT / path).read_bytes()


def test_wheel_has_no_benchmark_study_or_demo(installed):
    folders = {path.name for path in installed.iterdir() if path.suffix != '.dist-info'}
    assert folders == {'cpvt', 'cpvt_backbones'}
    left_out = {b''}
    for name in ('benchmarks', 'demo', 'projects', 'tests'):
        left_out |= {path.read_bytes() for path in (ROOT / name).rglob('*.py')}
    scripts = [path for path in installed.rglob('*.py') if 'configs' not in path.parts]
    assert [path for path in scripts if path.read_bytes() in left_out - {b''}] == []


def test_source_archive_builds_the_wheel_and_holds_no_more(archives):
    (file,) = archives.glob('*.zip')
    with zipfile.ZipFile(file) as archive:
        names = [name.partition('/')[2] for name in archive.namelist()]
    top = {name.split('/')[0] for name in names} - {''}
    folders, files = {'cpvt', 'cpvt_backbones', 'configs', 'tools'}, {'setup.py', 'pyproject.toml'}
    assert folders | files | {'model-index.yml', 'LICENSE'} <= top
    assert not top & {'benchmarks', 'demo', 'docs', 'projects', 'tests', 'data', 'work_dirs'}


@pytest.mark.full
def test_a_config_of_the_wheel_is_a_base(run, tmp_path):
    pytest.importorskip('mmdet')
    base = 'cpvt_backbones::retinanet/retinanet_pyramid-cpvt-s_fpn_1x_coco.py'
    (tmp_path / 'mine.py').write_text(f'_base_ = {base!r}')
    code = 'import cpvt_backbones; from mmengine.config import Config as C'
    assert 'PyramidCPVT' in run('-c', f"{code}; print(C.fromfile('mine.py').model)")


def write_photos(folder):
    """Ten photographs of noise with a box each, as COCO JSON."""
    (folder / 'photos').mkdir()
    rng = np.random.default_rng(0)
    images, boxes = [], []
    for i in range(10):
        Image.fromarray(rng.integers(0, 255, (48, 64, 3), np.uint8)).save(
            f'{folder}/photos/{i}.png'
        )
        images.append(dict(id=i, file_name=f'{i}.png', width=64, height=48))
        boxes.append(dict(id=i, image_id=i, category_id=i % 2 + 1, bbox=[4 + i, 5, 20, 16]))
    categories = [dict(id=1, name='cat'), dict(id=2, name='dog')]
    content = dict(images=images, annotations=boxes, categories=categories)
    (folder / 'boxes.json').write_text(json.dumps(content))


@pytest.mark.full
def test_the_wheel_alone_goes_from_labels_to_an_exported_file(installed, run, tmp_path):
    """The console command and a script of one's own, in a folder without a clone."""
    pytest.importorskip('mmdet')
    pytest.importorskip('mmseg')
    pytest.importorskip('mmpretrain')
    pytest.importorskip('onnxscript')
    (entry_points,) = installed.glob('*.dist-info/entry_points.txt')
    assert 'cpvt = cpvt.__main__:main' in entry_points.read_text()
    write_photos(tmp_path)
    (tmp_path / 'own.py').write_text(OWN_SCRIPT)
    workers = ['num_workers=0', 'persistent_workers=False']
    options = [f'{part}_dataloader.{one}' for part in ('train', 'val', 'test') for one in workers]
    trained = ['mine/detector.py', 'work_dirs/detector/iter_1.pth']
    name = 'cpvt_tiny_gap-imagenette'
    small = ['--verify-sizes', '64x96', '--verify-batches', '1']

    def cpvt(*words):
        return run('-m', 'cpvt', *words)

    cpvt('make-config', 'boxes.json', 'photos', '--out', trained[0], '--length', '1')
    cpvt('train', trained[0], '--no-progress', '--cfg-options', *options)
    assert 'Iter(test) [2/2]' in cpvt('test', *trained, '--cfg-options', *options)
    assert 'out: 10 images predicted' in cpvt('infer', *trained, 'photos', '--out-dir', 'out')
    assert 'model.onnx' in cpvt('export', name, '--out', 'model.onnx', *small)
    shown = cpvt('infer', 'model.onnx', 'photos/1.png', '--out-dir', 'exported')
    assert 'exported: 1 image predicted' in shown
    printed = run('own.py').splitlines()
    for line in ('predictions: 1', 'map: 1 48 64', 'map: 48 64'):
        assert line in printed


# -- metafiles


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
