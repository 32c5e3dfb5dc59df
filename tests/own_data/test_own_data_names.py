"""make_config.py: names and paths of the data are data, never the source of a config."""

import json

import pytest
from own_data_sets import (
    CocoSet,
    class_folders,
    mask,
    photo,
    read_json,
    voc_pair,
    write_coco,
    write_photos,
)

from cpvt_backbones.toolboxes import read_config

ATTACK = '{{$X:(.*|\\\',__import__("os").system("id>ran"))#}}'
SUBSTITUTED = [ATTACK, '{{$HOME:x}}', '{{ fileDirname }}', '{{_base_.scale}}', "{{'$HOME:x'}}"]
# mmengine substitutes nothing in this, which Python or a template could take as code.
KEPT = "it's \"b\" back\\slash %(x)s %s {scale} }} ''' $HOME x # y 日本é"


def coco(folder, name):
    pytest.importorskip('mmdet')
    data = CocoSet(folder)
    data.categories[0]['name'] = name
    return data.arguments()


def instances(folder, name):
    pytest.importorskip('mmdet')
    data = CocoSet(folder)
    data.add_outlines()
    data.categories[0]['name'] = name
    return data.arguments('instances')


def voc(folder, name):
    pytest.importorskip('mmdet')
    for i in range(10):
        voc_pair(folder / 'voc', i)
    for label in (folder / 'voc/Annotations').iterdir():
        escaped = name.replace('&', '&amp;').replace('<', '&lt;')
        label.write_text(label.read_text().replace('<name>cat', f'<name>{escaped}'))
    return ['voc', folder / 'voc']


def yolo(folder, name):
    pytest.importorskip('mmdet')
    for i in range(6):
        photo(folder / f'yolo/images/{i}.png')
        label = folder / f'yolo/labels/{i}.txt'
        label.parent.mkdir(exist_ok=True)
        label.write_text('0 0.5 0.5 0.4 0.4\n')
    content = dict(train='images', val='images', names=[name])  # JSON is YAML
    (folder / 'yolo/data.yaml').write_text(json.dumps(content))
    return ['yolo', folder / 'yolo']


def masks(folder, name):
    pytest.importorskip('mmseg')
    write_photos(folder / 'images', *(f'{i}.png' for i in range(5)))
    for i in range(5):
        mask(folder / f'masks/{i}.png', [0, 1])
    (folder / 'classes.txt').write_text(f'{name}\nother')
    return ['masks', folder / 'images', folder / 'masks', '--classes', folder / 'classes.txt']


def folders(folder, name):
    pytest.importorskip('mmpretrain')
    return ['folders', class_folders(folder / 'photos', [(name, 5), ('dog', 5)])]


FORMS = [coco, instances, voc, yolo, masks, folders]


@pytest.mark.parametrize('form', FORMS)
def test_a_name_that_mmengine_substitutes_is_refused(form, refuse, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    line = refuse(*form(tmp_path, ATTACK))
    assert 'mmengine substitutes in configs: rename' in line
    assert not (tmp_path / 'mine.py').exists() and not (tmp_path / 'ran').exists()


@pytest.mark.parametrize('name', SUBSTITUTED[1:])
def test_each_substitution_is_refused(name, refuse, tmp_path):
    assert 'mmengine substitutes in configs' in refuse(*coco(tmp_path, name))


@pytest.mark.parametrize('form', FORMS)
def test_other_names_are_kept(form, table, tmp_path):
    table(*form(tmp_path, KEPT))
    config = read_config(tmp_path / 'mine.py')
    assert KEPT in config.classes == config.train_dataloader.dataset.metainfo.classes
    sources = [tmp_path / 'mine.py', *(tmp_path / 'mine').glob('*.py')]
    assert len(sources) > 2
    source = ''.join(file.read_text() for file in sources)
    assert str(tmp_path) not in source
    assert 'dog' not in source and 'HOME' not in source


@pytest.mark.parametrize('part', ['{{$HOME:x}}', '{{ fileBasename }}', "a' + 'b", 'a\nb'])
def test_paths_are_data_too(part, call, refused, capsys, tmp_path):
    folder = tmp_path / part
    folder.mkdir()
    data = coco(folder, 'cat')
    out = tmp_path / 'c.py'
    if '{{' in part:
        assert 'mmengine substitutes' in refused('make_config', *data, '--out', out)
    else:
        call('make_config', *data, '--out', out)
        prefix = read_config(out).train_dataloader.dataset.data_prefix
        assert prefix.img == str(folder / 'images')


@pytest.mark.parametrize(
    'name', ["a'b.py", '{{$X:y}}.py', 'a\nimport os.py', 'a\\b.py', '~a.py', 'a::b.py', '.py']
)
def test_a_config_of_an_unsafe_name_is_refused(name, refused, tmp_path):
    line = refused('make_config', *coco(tmp_path, 'cat'), '--out', tmp_path / name)
    assert '--out: ' in line
    assert not (tmp_path / name).exists()


def test_a_config_that_reads_otherwise_is_removed(refuse, tmp_path, monkeypatch):
    """As with an mmengine that substitutes more than the known forms."""
    from mmengine.config import Config

    data = coco(tmp_path, 'cat')
    substitute = Config._substitute_predefined_vars

    def more(filename, target):
        substitute(filename, target)
        with open(target) as file:
            text = file.read()
        with open(target, 'w') as file:
            file.write(text.replace('"cat"', '"car"'))

    monkeypatch.setattr(Config, '_substitute_predefined_vars', staticmethod(more))
    assert 'would have' in refuse(*data)
    assert not (tmp_path / 'mine.py').exists()


@pytest.mark.full
def test_training_runs_no_name(call, table, tmp_path, monkeypatch):
    """The attack without its second brace, which is accepted, through the tools."""
    from mmengine.config import Config

    monkeypatch.chdir(tmp_path)
    name = ATTACK.replace('{{', '{').replace('}}', '}').replace('/', '|')
    table(*folders(tmp_path, name), '--length', '1')
    config = tmp_path / 'mine.py'
    assert name in Config.fromfile(config).classes
    options = []
    for part in ('train', 'val'):
        options += [f'{part}_dataloader.num_workers=0', f'{part}_dataloader.persistent_workers=0']
    call('train', config, '--cfg-options', *options)
    assert name in Config.fromfile(tmp_path / 'work_dirs/mine/mine.py').classes
    assert not (tmp_path / 'ran').exists()


def small_objects(folder, names):
    """A COCO file with an image and an object of 8 px for each name, a path as labels give it."""
    pytest.importorskip('mmdet')
    images, objects = [], []
    for number, name in enumerate(names):
        photo(folder / 'labels/images' / name, size=(1000, 700), seed=number)
        images.append(dict(id=number, file_name=str(name)))
        objects.append(dict(id=number, image_id=number, category_id=0, bbox=[30, 40, 8, 8]))
    return write_coco(folder / 'all.json', images, objects, [dict(id=0, name='dot')])


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob('*') if path.is_file()}


@pytest.mark.full
def test_tiles_lie_in_the_output_folder(table, tmp_path):
    """Whatever the labels call their images."""
    (tmp_path / 'other').mkdir()
    names = ['../../victim/a.png', tmp_path / 'victim/b.png', 'a.png', 'sub/a.png']
    names += ['sub/../c.png', 'victim/A.png', 'd.png', '../d.png', 'sub/../../images/e.png']
    (tmp_path / 'labels/images/sub').mkdir(parents=True)
    file = small_objects(tmp_path, names)
    victims = contents(tmp_path / 'victim') | contents(tmp_path / 'labels')
    table('coco', file, tmp_path / 'labels/images')
    assert contents(tmp_path / 'victim') | contents(tmp_path / 'labels') == victims
    for part, images in (('train', 8), ('val', 1)):
        listed = read_json(tmp_path / f'mine/{part}.json')['images']
        tiles = tmp_path / f'mine/tiles/{part}'
        files = {path.relative_to(tiles).as_posix() for path in contents(tiles)}
        assert files == {image['file_name'] for image in listed}
        assert len({name.rpartition('.png_')[0].lower() for name in files}) == images


@pytest.mark.parametrize('link', ['tiles', 'tiles/train', 'masks', 'train.json'])
def test_nothing_is_written_through_a_link(link, refuse, tmp_path):
    target = tmp_path / 'victim'
    target.mkdir()
    (tmp_path / 'mine' / link).parent.mkdir(parents=True)
    (tmp_path / 'mine' / link).symlink_to(target)
    line = refuse('coco', small_objects(tmp_path, ['a.png', 'b.png']), tmp_path / 'labels/images')
    assert f'is a link to {target}' in line
    assert not [*target.iterdir()]
