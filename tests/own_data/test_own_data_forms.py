"""The form of the data is recognised from files and folders, and wrong arguments are refused."""

from pathlib import Path

import pytest
from own_data_sets import assert_used, mask, photo, write_photos


def test_forms_are_recognised(coco, masks, photos, table):
    for image in coco.images:
        mask(masks.masks / image['file_name'], [0, 1])
    _, file, images = coco.arguments()
    assert f'Format: coco {file} {images}\n' in table(file, images)
    assert f'Format: masks {images} {masks.masks}\n' in table(images, masks.masks)
    assert f'Format: folders {photos}\n' in table(photos)
    data = coco.folder / 'data'
    data.mkdir()
    for folder in (images, masks.masks):
        folder.rename(data / folder.name)
    assert f'Format: masks {data}/images {data}/masks\n' in table(data)


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        ('vocc photos', 'there is no file or folder'),
        ('masks images maskss', "did you mean 'masks'?"),
        ('./images ./masks --classes none.txt', '--classes: there is no file or folder'),
        ('photos --val photos', '--val: only coco and instances have it, the data are folders'),
        ('photos photos photos', 'recognised; name it'),
        ('coco images', 'coco takes 2 paths'),
        ('coco empty.json images', "is not COCO JSON: 'images' must be a list"),
        ('folders empty', 'data: no .bmp or'),
    ],
)
def test_wrong_arguments_are_refused(masks, photos, refuse, monkeypatch, arguments, message):
    monkeypatch.chdir(masks.folder)
    Path('empty').mkdir()
    Path('empty.json').write_text('{}')
    assert message in refuse(*arguments.split())


def test_layouts_of_roboflow_and_coco_are_recognised(coco, table, refuse):
    roboflow, own = coco.folder / 'roboflow', coco.folder / 'own'
    (own / 'annotations').mkdir(parents=True)
    names = [image['file_name'] for image in coco.images]
    for part, other in (('train', 'train2017'), ('valid', 'val2017'), ('test', 'test2017')):
        for i, name in enumerate(names):
            photo(roboflow / part / name, seed=[len(part), i])
            photo(own / other / name, seed=[len(part), i])
        coco.write().rename(roboflow / part / '_annotations.coco.json')
        coco.write().rename(own / f'annotations/instances_{other}.json')
    (own / 'annotations/captions_train2017.json').write_text('{"images": [], "annotations": []}')
    printed = table(roboflow)
    parts = [f'{roboflow}/{part}/_annotations.coco.json {roboflow}/{part}' for part in
             ('train', 'valid')]  # fmt: skip
    assert f'Format: coco {" --val ".join(parts)}\n' in printed
    assert_used(printed, 10, 10)
    wanted = 'skipped       10 images outside the training and validation sets, such as test:'
    assert f'{wanted} {roboflow}/test/_annotations.coco.json: 0.png' in printed
    wanted = f'--val {own}/annotations/instances_val2017.json {own}/val2017\n'
    assert f'instances_train2017.json {own}/train2017 {wanted}' in table(own)
    coco.write().rename(own / 'annotations/more_train.json')
    assert 'has several COCO files' in refuse(own)
    (roboflow / 'data.yaml').write_text('names: [cat]')
    assert 'has more than one format, coco (' in refuse(roboflow)


@pytest.mark.parametrize('text', ['<xml>no</xml>', '{"images": [', '', '\ufffd{'])
def test_a_json_file_that_cannot_be_read_is_named(coco, refuse, text):
    """The folder is not taken for another form, and a broken part is not left out."""
    folder = coco.folder / 'été 1'
    for i in range(6):
        photo(folder / f'images/{i}.png', seed=i)
    (folder / 'val.json').write_text(text, encoding='utf-8')
    named = f'data: {folder}/val.json is not JSON: '
    assert named in refuse(folder)
    coco.write().rename(folder / 'train.json')
    assert named in refuse(folder)
    assert named in refuse(folder / 'val.json')


def test_coco_files_without_labels(coco, refuse, table):
    """The one file must be complete; beside a complete one, it is of a test set."""
    _, file, images = coco.arguments()
    folder = coco.folder / 'data'
    folder.mkdir()
    images.rename(folder / 'images')
    test = folder / 'image_info_test.json'
    test.write_text('{"images": [{"id": 1, "file_name": "far.png"}], "categories": []}')
    assert f"data: {test} is not COCO JSON: it lacks 'annotations'" in refuse(folder)
    file.rename(folder / 'all.json')
    assert f'1 images outside the training and validation sets, such as test: {test}' in table(
        folder
    )
    test.write_text('{"images": null, "categories": []}')
    assert f'Format: coco {folder}/all.json {folder}/images\n' in table(folder, '--overwrite')


@pytest.mark.parametrize(
    ('name', 'content', 'words'),
    [
        ('1.json', '{"shapes": [], "imagePath": "1.png"}', 'is of LabelMe: '),
        ('a.json', '[{"id": 1, "data": {}, "annotations": []}]', 'is of Label Studio: export COCO'),
        ('a.json', '[{"image": "1.png", "annotator": 1}]', 'is of Label Studio: '),
        ('a.json', '[{"image": "1.png", "annotations": []}]', 'is of CreateML: '),
        ('a.json', '{"1.png9": {"filename": "1.png", "regions": []}}', 'is of VIA: '),
        ('a.json', '{"objects": [{"classTitle": "cat"}], "size": {}}', 'is of Supervisely: '),
        ('a.xml', '<annotations><image name="1.png"/></annotations>', 'is of CVAT: export COCO'),
        ('a.csv', 'ImageID,XMin,XMax,YMin,YMax', 'is of Open Images or TensorFlow: '),
        ('a.csv', 'filename,region_shape_attributes', 'is of VIA: '),
        ('_classes.csv', 'Pixel Value, Class', "is of Roboflow's masks: move the masks"),
        ('_classes.csv', 'filename, cat, dog', 'is of Roboflow: '),
    ],
)
def test_other_programs_are_named(tmp_path, refuse, name, content, words):
    write_photos(tmp_path / 'data', '1.png')
    (tmp_path / 'data' / name).write_text(content)
    assert f'data: {tmp_path}/data/{name} {words}' in refuse(tmp_path / 'data')
    assert 'images outside of <class>/' in refuse('folders', tmp_path / 'data')


@pytest.mark.parametrize('content', ['[]', '[1]', '7', '"shapes"', '{"a": 1}'])
def test_other_json_files_beside_class_folders_are_ignored(photos, table, content):
    (photos / 'notes.json').write_text(content)
    (photos / 'notes.csv').write_text('name,age')
    assert 'data accepted' in table(photos)


@pytest.mark.parametrize('form', ['coco', 'masks', 'photos'])
def test_what_an_earlier_call_wrote_is_no_data(call, capsys, request, form):
    """A second call read the labels, or the sheet as a class, that the first one wrote."""
    data = request.getfixturevalue(form)
    folder = data if form == 'photos' else data.folder
    if form == 'coco':
        data.write()
    printed = []
    for options in ([], ['--overwrite']):
        capsys.readouterr()
        call('make_config', folder, '--out', folder / 'model.py', *options)
        printed.append(capsys.readouterr().out)
    skipped = f'skipped        1 folders that cpvt make-config wrote: {folder}/model'
    assert skipped not in printed[0]
    used = [[line for line in text.splitlines() if line.startswith(('The data', 'read', 'used'))]
            for text in printed]  # fmt: skip
    assert used[0] == used[1]
