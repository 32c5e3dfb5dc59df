"""train.py, test.py and infer.py on one config of each toolbox, with a model of a few thousand
weights.
"""

import json
import pickle
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tiny import only
from tiny_configs import TASKS, classification

from cpvt_backbones.toolboxes import TOOLBOXES, read_config

SIZES = {'odd.png': (53, 31), 'tall.jpg': (20, 97), 'odd.jpg': (40, 40)}


@pytest.fixture
def photos(tmp_path):
    """A folder with images of odd sizes, and one file that is no image."""
    folder = tmp_path / 'photos'
    folder.mkdir()
    rng = np.random.default_rng(0)
    for name, (width, height) in SIZES.items():
        Image.fromarray(rng.integers(0, 255, (height, width, 3), np.uint8)).save(folder / name)
    (folder / 'notes.txt').write_text('no image')
    return folder


@pytest.mark.parametrize('scope', only('mmdet', of=TASKS))
def test_train_resume_test_infer(scope, scenes, photos, tmp_path, call):
    pytest.importorskip(scope)
    config, options = TASKS[scope](scenes, tmp_path)
    work = tmp_path / 'work'

    call('train', config, '--work-dir', work, '--cfg-options', *options)
    before = torch.load(work / 'iter_2.pth', weights_only=False)['state_dict']

    # One more iteration from the newest checkpoint, not three from nothing.
    longer = ['train_cfg.max_iters=3', 'train_cfg.val_interval=3']
    call('train', config, '--work-dir', work, '--resume', '--cfg-options', *options, *longer)
    (last_log,) = sorted(work.glob('*/*.log'))[-1:]
    assert re.search(r'resumed epoch: 0, iter: 2', last_log.read_text())
    checkpoint = work / 'iter_3.pth'
    after = torch.load(checkpoint, weights_only=False)['state_dict']
    assert before.keys() == after.keys()
    assert any(not torch.equal(before[name], after[name]) for name in before)

    out = tmp_path / ('masks' if scope == 'mmseg' else 'predictions.pkl')
    shown = tmp_path / 'shown'
    output = ['--work-dir', work, '--out', out, '--show-dir', shown]
    call('test', config, checkpoint, *output, '--cfg-options', *options)
    if scope == 'mmseg':
        assert sorted(path.name for path in out.iterdir()) == ['000000.png', '000001.png']
        assert Image.open(out / '000000.png').size == (61, 37)
    else:
        assert len(pickle.loads(out.read_bytes())) == (4 if scope == 'mmpretrain' else 2)
    assert len([path for path in shown.rglob('*') if path.suffix in ('.png', '.jpg')]) >= 2

    results = tmp_path / 'results'
    output = ['--out-dir', results, '--device', 'cpu', '--score-thr', '0']
    call('infer', config, checkpoint, photos, *output, '--cfg-options', *options)
    images = json.loads((results / 'images.json').read_text())['images']
    ids = {Path(image['file_name']).name: image['id'] for image in images}
    assert list(ids) == ['odd.jpg', 'odd.png', 'tall.jpg']
    pictures = sorted(path.name for path in (results / 'vis').iterdir())
    assert pictures == ['odd.jpg', 'odd_2.jpg', 'tall.jpg']
    predictions = json.loads((results / 'predictions.json').read_text())
    tall = [entry for entry in predictions if entry['image_id'] == ids['tall.jpg']]
    if scope == 'mmdet':
        boxes = np.array([entry['bbox'] for entry in tall])
        assert (boxes[:, :2] >= 0).all()
        assert (boxes[:, :2] + boxes[:, 2:] <= np.array(SIZES['tall.jpg']) + 0.001).all()
    elif scope == 'mmseg':
        assert Image.open(results / tall[0]['seg_map']).size == SIZES['tall.jpg']
    else:
        assert tall[0]['class'] == ['dark', 'light'][tall[0]['label']]
    if scope != 'mmpretrain':
        assert Image.open(results / 'vis' / 'tall.jpg').size == SIZES['tall.jpg']


NAMES = ' '.join(map(repr, TOOLBOXES))


@pytest.mark.parametrize(
    ('text', 'words'),
    [
        ('model = dict()', f'default_scope is missing from the config ... {NAMES}'),
        ("default_scope = 'mmtext'", f"default_scope is 'mmtext' ... {NAMES}"),
        ("default_scope = 'mmpretrain'", "config.py' has no model: model = dict(type=...)"),
        ("default_scope = 'mmpretrain'\nmodel = 3", "config.py' has no model"),
        ('model = dict(', "cannot be read: SyntaxError: '(' was never closed"),
        ("custom_imports = dict(imports=['none'])", 'cannot be read: ImportError: Failed to imp'),
    ],
    ids=['no scope', 'another scope', 'no model', 'a number', 'syntax', 'import'],
)
def test_a_config_that_cannot_be_used_is_refused(text, words, tmp_path, refused):
    config = tmp_path / 'config.py'
    config.write_text(text)
    line = refused('train', config)
    message, _, names = words.partition(' ... ')
    assert message in line and all(name in line for name in names.split())


@pytest.mark.parametrize(
    ('tool', 'words', 'message'),
    [
        ('train', '--auto-scale-lr', '--auto-scale-lr: the config has no auto_scale_lr.base_batch'),
        ('train', '--resume none.pth', "resume: there is no file or folder 'none.pth'"),
        ('test', 'model.pth --out x.json', 'out: mmpretrain writes predictions to a .pkl or .p'),
    ],
)
def test_wrong_options_are_named(tool, words, message, tmp_path, monkeypatch, refused):
    pytest.importorskip('mmpretrain')
    config, _ = classification(None, tmp_path)
    monkeypatch.chdir(tmp_path)
    Path('model.pth').touch()
    assert message in refused(tool, config, *words.split())


def test_work_dir_comes_from_the_command_line_the_config_or_its_name(tmp_path):
    pytest.importorskip('mmpretrain')
    config = tmp_path / 'my_model.py'
    config.write_text("default_scope = 'mmpretrain'")
    assert read_config(config).work_dir == str(Path('work_dirs', 'my_model'))
    config.write_text("default_scope = 'mmpretrain'\nwork_dir = 'mine'")
    assert read_config(config).work_dir == 'mine'
    assert read_config(config, work_dir='given').work_dir == 'given'
