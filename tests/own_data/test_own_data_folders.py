"""Class folders: names, splits, and folders that are no classes."""

import os
import shutil

import numpy as np
import pytest
from own_data_sets import assert_used, class_folders, has, photo, write_photos
from PIL import Image


def test_images_of_one_name_and_two_suffixes_are_kept(photos, table):
    photo(photos / 'cat/cat1.jpg')
    assert has(table('folders', photos), 'read 11 images')
    lists = [(photos.parent / f'mine/{part}.txt').read_text() for part in ('train', 'val')]
    lines = sorted(''.join(lists).splitlines())
    assert len(lines) == 11 and lines[1:3] == ['cat/cat1.jpg 0', 'cat/cat1.png 0']


def test_names_with_a_dot_other_files_and_empty_folders_are_skipped(photos, table, config):
    photo(photos / '.ipynb_checkpoints/cat1.png')
    (photos / 'cat/._cat1.png').write_bytes(b'x')
    class_folders(photos.parent / 'elsewhere', [('bird', 3)])
    (photos / 'bird').symlink_to(photos.parent / 'elsewhere/bird')
    (photos / 'empty').mkdir()
    (photos / 'cat/cat7.heic').write_bytes(b'x')
    printed = table('folders', photos)
    assert config().classes == ('bird', 'cat', 'dog')
    for line in (
        f'skipped 2 names that begin with a dot: {photos}/.ipynb_checkpoints, ',
        f'skipped 1 images of an unsupported format (.heic): {photos}/cat/cat7.heic',
        f'note 1 folders without images: {photos}/empty',
    ):
        assert has(printed, line)


def test_images_outside_or_below_the_classes_are_refused(photos, refuse):
    photo(photos / 'alone.png')
    photo(photos / 'cat/old/a.png')
    line = refuse('folders', photos)
    assert f'images outside of <class>/: {photos}/alone.png' in line
    assert f'images deeper than <class>/: {photos}/cat/old/a.png' in line


def test_the_folder_of_the_classes_is_named_if_one_above_is_given(photos, refuse):
    wanted = f'images deeper than <class>/: give {photos}: '
    assert wanted in refuse('folders', photos.parent)
    photo(photos.parent / 'dog.png')
    assert wanted not in refuse('folders', photos.parent)


def test_images_without_labels_are_refused(photos, refuse):
    advice = 'and no labels: make a folder for each class, or name the format of the labels'
    assert f'outside of <class>/, {advice}: {photos}/cat/cat0.png' in refuse(photos / 'cat')


def test_damaged_images_are_refused(photos, refuse):
    (photos / 'cat/cat1.png').write_bytes((photos / 'cat/cat0.png').read_bytes()[:200])
    (photos / 'dog/dog3.png').write_bytes(b'')
    line = refuse('folders', photos)
    assert has(line, f'refused 2 images that cannot be read ... {photos}/cat/cat1.png (')
    assert f'{photos}/dog/dog3.png (the file is empty)' in line


@pytest.mark.parametrize(
    ('folders', 'advice'),
    [
        ('image label aug', 'masks {0}/image {0}/label;'),
        ('JPEGImages SegmentationClass SegmentationObject', 'masks {0}/JPEGImages {0}/Se'),
        ('img mask', 'masks {0}/img {0}/mask;'),
        ('scans Annotations', 'masks {0}/IMAGES {0}/Annotations;'),
        ('train/images train/labels val/images val/labels', 'masks {0}/train/images {0}'),
    ],
)
def test_folders_of_images_and_masks_are_no_classes(tmp_path, refuse, folders, advice):
    pytest.importorskip('mmpretrain')
    same_names(tmp_path / 'data', folders.split())
    line = refuse('folders', tmp_path / 'data')
    assert 'folders of images or masks, which are not classes' in line
    assert advice.format(tmp_path / 'data') in line


def same_names(data, folders, step=0):
    """Three images in each folder; the numbers of their names differ by ``step``."""
    for i, folder in enumerate(folders):
        for j in range(3):
            photo(data / f'{folder}/{j + step * i}.png', seed=[i, j])


def test_one_image_in_two_classes_is_noted(photos, table):
    shutil.copy(photos / 'cat/cat1.png', photos / 'dog/again.png')
    printed = table('folders', photos)
    assert f'contradict each other: {photos}/cat/cat1.png = {photos}/dog/again.png\n' in printed
    assert has(printed, 'class 1 dog: 5 training images, 1 validation images')


def test_folders_of_train_and_val_are_the_split(tmp_path, refuse, table):
    pytest.importorskip('mmpretrain')
    parts = tmp_path / 'parts'
    for part in ('train', 'val', 'extra'):
        for kind in ('cat', 'dog'):
            for i in range(2):
                photo(parts / f'{part}/{kind}/{part}{i}.png')
    printed = table('folders', parts)
    assert_used(printed, 4, 4)
    assert has(printed, 'skipped 4 images outside train/ and val/')
    photo(parts / 'val/bird/1.png')
    assert 'classes without a training image: bird' in refuse('folders', parts)


def test_every_fifth_image_of_each_class_is_for_validation(photos, table):
    class_folders(photos, [('few', 3), ('two', 2), ('one', 1)])
    table('folders', photos)
    held_out = (photos.parent / 'mine/val.txt').read_text().splitlines()
    assert held_out == ['cat/cat4.png 0', 'dog/dog4.png 1', 'few/few2.png 2']


@pytest.mark.parametrize('name', [' a.png', 'a\nb.png', 'a\u2028b.png', b'caf\xe9.png'])
def test_names_that_a_list_cannot_hold_are_refused(photos, refuse, name):
    folder = photos / 'cat'
    if name == ' a.png':  # a line of the list begins with the class
        folder = (photos / ' cat').resolve()
        (photos / 'cat').rename(folder)
    photo(folder / 'new.png')
    os.rename(folder / 'new.png', os.path.join(os.fsencode(folder), os.fsencode(name)))
    assert 'file names that begin or end with a space, have a line break' in refuse(photos)


def test_files_of_several_images_are_noted(photos, table):
    frames = [Image.new('RGB', (32, 32), (90 * i, 0, 0)) for i in range(3)]
    for name in ('cat/a.gif', 'dog/a.tif'):
        frames[0].save(photos / name, save_all=True, append_images=frames[1:])
    wanted = f'note 2 files of several images, such as TIFF stacks: the first is used: {photos}/cat'
    assert has(table(photos), f'{wanted}/a.gif (3), {photos}/dog/a.tif (3)')


def test_overviews_of_a_tiff_are_no_images(tmp_path):
    rasterio = pytest.importorskip('rasterio')
    from cpvt_backbones.own_data.read.files import inspect_image

    options = dict(driver='GTiff', width=64, height=64, count=1, dtype='uint8')
    with rasterio.open(tmp_path / 'a.tif', 'w', **options) as file:
        file.write(np.arange(4096, dtype=np.uint8).reshape(1, 64, 64))
        file.build_overviews([2, 4])
    with Image.open(tmp_path / 'a.tif') as file:
        assert file.n_frames == 3
    assert inspect_image(tmp_path / 'a.tif').frames == 1


def test_classes_of_one_name_in_other_characters_are_noted(photos, table):
    class_folders(photos, [('caf\u00e9', 3), ('cafe\u0301', 4)])
    words = (
        'class names that differ only in case, spaces and signs: cafe\u0301 (4 images), caf\u00e9'
    )
    assert words in table(photos)


def test_a_sheet_that_cannot_be_drawn_ends_nothing(table, config, photos, monkeypatch):
    """The labels are written before it, the config after it."""

    def fail(_):
        raise OSError(28, 'No space left on device')

    monkeypatch.setattr('cpvt_backbones.own_data.write.data.contact_sheet', fail)
    printed = table('folders', photos)
    assert 'images with their labels were not drawn: [Errno 28] No space left' in printed
    assert config().train_dataloader.dataset.ann_file


def test_the_sizes_of_the_images_are_told(photos, table):
    line = 'classifier of 2 classes, 8 training images, '
    assert f'{line}median 64 x 48 px' in table('folders', photos)
    for kind, size in (('cat', (20, 24)), ('dog', (96, 72))):
        write_photos(photos / kind, *(f'{kind}{i}.png' for i in range(5)), size=size)
    printed = table('folders', photos)
    assert f'{line}20 x 24 to 96 x 72 px, median 58 x 48 px' in printed
