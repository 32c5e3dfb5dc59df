"""A config, its lists and its class maps are one unit: they change together, or a training refuses
them.
"""

import contextlib
import json
import os
import shutil

import pytest
from own_data_sets import data_set
from tiny import interrupting

from cpvt_backbones.checkpoints import lock_file
from cpvt_backbones.engine.class_names import check_annotations
from cpvt_backbones.toolboxes import read_config


def content_of(folder):
    """Bytes of the config and of each file of its folder; the table of the data is for reading."""
    files = [folder / 'mine.py', *sorted((folder / 'mine').rglob('*'))]
    own = [file for file in files if file.is_file() and file.name not in ('.lock', 'check.csv')]
    return {str(file.relative_to(folder)): file.read_bytes() for file in own}


@pytest.fixture
def change(request, tmp_path):
    """Function that writes data of a form, and changes what its labels number."""

    def folders():
        photos = request.getfixturevalue('photos')
        return ['folders', photos], lambda: (photos / 'dog').rename(photos / 'ant')

    def masks():
        data = request.getfixturevalue('masks')
        (tmp_path / 'names.txt').write_text('zebra\ncat')
        arguments = [*data.arguments, '--classes', tmp_path / 'names.txt']
        return arguments, lambda: (tmp_path / 'names.txt').write_text('cat\nzebra')

    def coco():
        data = request.getfixturevalue('coco')

        def swap():
            data.categories.reverse()
            for one, category in enumerate(data.categories, 1):
                category['id'] = one
            data.write()

        return data.arguments(), swap

    return dict(folders=folders, masks=masks, coco=coco)


@pytest.mark.parametrize(
    'form',
    [pytest.param('folders', marks=pytest.mark.full), pytest.param('masks', marks=pytest.mark.full)]
    + ['coco'],
)
def test_wherever_a_call_ends_no_config_is_beside_labels_of_another(
    form, change, table, call, tmp_path, monkeypatch
):
    """Ctrl-C at every file that is flushed to the disk: old, new, or no config at all."""
    arguments, renumber = change[form]()
    table(*arguments)
    old = content_of(tmp_path)
    for name in ('mine', 'mine.py'):
        copy(tmp_path / name, tmp_path / 'kept' / name)
    renumber()
    states = []
    while len(states) < 100:
        with monkeypatch.context() as patched:
            (fsync,) = interrupting(os.fsync, at=len(states) + 1)
            patched.setattr('os.fsync', fsync)
            with contextlib.suppress(KeyboardInterrupt, SystemExit):
                call('make_config', *arguments, '--out', tmp_path / 'mine.py', '--overwrite')
                break
        assert not (tmp_path / 'mine/.part').exists()
        states.append(content_of(tmp_path))
        for name in ('mine', 'mine.py'):
            copy(tmp_path / 'kept' / name, tmp_path / name)
    new = content_of(tmp_path)
    assert old != new
    for part in ('train', 'val'):
        check_annotations(data_set(read_config(tmp_path / 'mine.py'), part), part)
    assert all(one in (old, new) for one in states if 'mine.py' in one)
    assert states.count(old) > 5 and len([one for one in states if 'mine.py' not in one]) < 5


def copy(source, target):
    if target.is_dir():
        shutil.rmtree(target)
    target.parent.mkdir(exist_ok=True)
    shutil.copytree(source, target) if source.is_dir() else shutil.copy(source, target)


@pytest.mark.parametrize('form', ['folders', 'masks', 'coco'])
def test_classes_in_another_order_than_the_labels_are_refused(form, change, table, tmp_path):
    arguments, _ = change[form]()
    table(*arguments)
    file = tmp_path / 'mine/data.json'
    content = json.loads(file.read_text())
    content['own_data']['classes'].reverse()
    file.write_text(json.dumps(content))
    with pytest.raises(ValueError, match='number them as|numbers them as'):
        check_annotations(data_set(read_config(tmp_path / 'mine.py'), 'train'), 'train')


def test_a_training_refuses_the_list_of_another_config(photos, table, refused, tmp_path):
    table('folders', photos)
    shutil.copytree(tmp_path / 'mine', tmp_path / 'first')
    (photos / 'dog').rename(photos / 'ant')
    table('folders', photos)
    shutil.copy(tmp_path / 'first/train.txt', tmp_path / 'mine/train.txt')
    line = refused('train', tmp_path / 'mine.py', '--work-dir', tmp_path / 'run')
    assert 'mine/train.txt was changed after' in line and 'write the config again' in line
    shutil.copy(tmp_path / 'first/classes.json', tmp_path / 'mine/classes.json')
    with pytest.raises(ValueError, match=r'metainfo.classes is \(ant, cat\), but'):
        check_annotations(data_set(read_config(tmp_path / 'mine.py'), 'train'), 'train')


def test_class_maps_of_another_config_are_refused(masks, table, tmp_path):
    names = masks.classes('zebra\ncat')
    table(*masks.arguments, *names)
    shutil.copytree(tmp_path / 'mine/masks', tmp_path / 'first')
    masks.classes('cat\nzebra')
    table(*masks.arguments, *names)
    check_annotations(data_set(read_config(tmp_path / 'mine.py'), 'train'), 'train')
    shutil.rmtree(tmp_path / 'mine/masks')
    shutil.copytree(tmp_path / 'first', tmp_path / 'mine/masks')
    with pytest.raises(ValueError, match='masks.*by its classes.json'):
        check_annotations(data_set(read_config(tmp_path / 'mine.py'), 'train'), 'train')


@pytest.mark.parametrize('content', ['', '[]', '{"classes": 3, "lists": {}}', '[' * 10**5])
def test_a_damaged_file_of_names_is_named(content, photos, table, tmp_path):
    table('folders', photos)
    (tmp_path / 'mine/classes.json').write_text(content)
    with pytest.raises(ValueError, match='classes.json is damaged'):
        check_annotations(data_set(read_config(tmp_path / 'mine.py'), 'train'), 'train')


def test_lists_of_other_programs_need_no_names(photos, table, tmp_path):
    table('folders', photos)
    (tmp_path / 'mine/classes.json').unlink()
    check_annotations(data_set(read_config(tmp_path / 'mine.py'), 'train'), 'train')


def test_what_is_left_of_a_killed_call_goes_and_what_is_the_users_stays(photos, table, tmp_path):
    table('folders', photos)
    (tmp_path / 'mine/.part/mine').mkdir(parents=True)
    (tmp_path / 'mine/.part/mine/train.txt').write_text('cat/cat0.png 7')
    (tmp_path / 'mine/val.json').write_text('{}')  # of a call with boxes
    (tmp_path / 'mine/notes.txt').write_text('look at cat3')
    table('folders', photos)
    found = {path.name for path in (tmp_path / 'mine').iterdir()}
    assert found >= {'notes.txt', 'train.txt', 'classes.json', 'sheet.jpg'}
    assert not found & {'.part', 'val.json'}
    assert '7' not in (tmp_path / 'mine/train.txt').read_text().replace('7.png', '')


def test_folders_of_the_user_are_not_written_to(photos, refused, tmp_path):
    line = refused('make_config', 'folders', photos, '--out', tmp_path / 'photos.py')
    assert 'the data' in line and 'choose another name for the config' in line
    (tmp_path / 'other').mkdir()
    (tmp_path / 'other/masks').mkdir()
    line = refused('make_config', 'folders', photos, '--out', tmp_path / 'other.py')
    assert 'has others, such as masks' in line
    assert [path.name for path in (tmp_path / 'other').iterdir()] == ['masks']


def test_two_calls_for_one_config(photos, table, refuse, tmp_path):
    table('folders', photos)
    lock = lock_file(tmp_path / 'mine/.lock', warn=print)
    assert 'another cpvt make-config writes' in refuse('folders', photos)
    lock.release()
    table('folders', photos)
