"""Tiny data sets in each form that make_config.py reads, for a test to change."""

import json

import cv2
import numpy as np
from PIL import Image

WIDTH, HEIGHT = 64, 48  # px


def photo(path, size=(WIDTH, HEIGHT), *, orientation=1, seed=None):
    """Write a photograph of coarse noise, of its own for each file name.

    ``size`` is before EXIF's rotation.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # Not hash(), which differs from process to process.
    rng = np.random.default_rng(list(str(path.name).encode()) if seed is None else seed)
    image = Image.fromarray(rng.integers(0, 255, (12, 16, 3), np.uint8)).resize(size)
    exif = image.getexif()
    if orientation != 1:
        exif[274] = orientation
    image.save(path, exif=exif)


def write_photos(folder, *names, **options):
    for name in names:
        photo(folder / name, **options)


def mask(path, values, size=(WIDTH, HEIGHT), dtype=np.uint8):
    """Write an image that repeats the values; colours are BGR."""
    path.parent.mkdir(parents=True, exist_ok=True)
    array = np.resize(np.array(values, dtype), (size[1], size[0], *np.shape(values)[1:]))
    cv2.imwrite(str(path), array)


def read_json(path):
    return json.loads(path.read_text())


def write_coco(path, images, annotations, categories):
    content = dict(images=images, annotations=annotations, categories=categories)
    path.write_text(json.dumps(content))
    return path


def outline_of(box):
    """A rectangle as a polygon."""
    x, y, width, height = box
    return [[x, y, x + width, y, x + width, y + height, x, y + height]]


class CocoSet:
    """Ten images with two boxes each, and a JSON file of them."""

    def __init__(self, folder):
        self.folder, self.photos = folder, folder / 'images'
        size = dict(width=WIDTH, height=HEIGHT)
        self.images = [dict(id=i, file_name=f'{i}.png', **size) for i in range(10)]
        self.annotations = []
        for i in range(20):
            box = [4 + i, 5, 20, 16]
            self.annotations.append(dict(id=i, image_id=i // 2, category_id=i % 2 + 1, bbox=box))
        self.categories = [dict(id=1, name='cat'), dict(id=2, name='dog')]
        write_photos(self.photos, *(image['file_name'] for image in self.images))

    def add_outlines(self):
        for one in self.annotations:
            one['segmentation'] = outline_of(one['bbox'])

    def write(self, name='all.json'):
        file = self.folder / name
        return write_coco(file, self.images, self.annotations, self.categories)

    def arguments(self, form='coco'):
        return [form, self.write(), self.photos]

    def read(self, part):
        return read_json(self.folder / f'mine/{part}.json')

    def written(self):
        """Images and annotations of both parts by id, and the categories."""
        train, val = self.read('train'), self.read('val')
        both = {}
        for key in ('images', 'annotations'):
            both[key] = sorted(train[key] + val[key], key=lambda one: one['id'])
        return both, train['categories']


VOC = """<annotation><size><width>{width}</width><height>{height}</height></size>
<object><name>cat</name><difficult>{difficult}</difficult>
<bndbox><xmin>5</xmin><ymin>6</ymin><xmax>{right}</xmax><ymax>{bottom}</ymax></bndbox></object>
</annotation>"""


def voc_label(path, *, width=WIDTH, height=HEIGHT, difficult=0, right=24, bottom=30):
    path.parent.mkdir(parents=True, exist_ok=True)
    values = dict(width=width, height=height, difficult=difficult, right=right, bottom=bottom)
    path.write_text(VOC.format(**values))


def voc_pair(folder, name, image='JPEGImages/{}.png', label='Annotations/{}.xml', **options):
    """An image and its label."""
    photo(folder / image.format(name))
    voc_label(folder / label.format(name), **options)


class MaskSet:
    """Five images with masks of two classes."""

    def __init__(self, folder):
        self.folder, self.images, self.masks = folder, folder / 'images', folder / 'masks'
        self.arguments = ['masks', self.images, self.masks]
        write_photos(self.images, *(f'{i}.png' for i in range(5)))
        self.fill([0, 1, 1])

    def put(self, name, values, **options):
        mask(self.masks / name, values, **options)

    def fill(self, values):
        """Replace all masks."""
        for i in range(5):
            self.put(f'{i}.png', values)

    def remove(self, name):
        (self.masks / name).unlink()

    def change(self, name, index, value):
        """Set some pixels of a mask."""
        array = cv2.imread(str(self.masks / name), -1)
        array[index] = value
        cv2.imwrite(str(self.masks / name), array)

    def given(self, options):
        """Arguments with a file of the names of the classes, and options after them."""
        names, dashes, rest = options.partition('--')
        named = self.classes(names) if names else []
        return [*self.arguments, *named, *(dashes + rest).split()]

    def classes(self, text):
        """Write a file of the names of the classes; returns the option."""
        (self.folder / 'classes.txt').write_text(text)
        return ['--classes', self.folder / 'classes.txt']

    def written(self, name='3.png'):
        return np.asarray(Image.open(self.folder / f'mine/masks/{name}.png'))

    def first(self, name='3.png', count=3):
        """The first values of a mask that was written."""
        return self.written(name).ravel()[:count].tolist()


class YoloSet:
    """Five images of training and two of validation with a box of YOLO's each."""

    def __init__(self, folder):
        self.folder = folder / 'yolo'
        for part, count in (('train', 5), ('val', 2)):
            for i in range(count):
                photo(self.folder / f'images/{part}/{part}{i}.png')
                self.label(f'{part}/{part}{i}', '1 0.5 0.5 0.25 0.5')
        self.yaml()

    def label(self, name, text):
        path = self.folder / f'labels/{name}.txt'
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def yaml(self, **values):
        content = dict(path='.', train='images/train', val='images/val', names='[cat, dog]')
        lines = [f'{key}: {value}\n' for key, value in {**content, **values}.items()]
        (self.folder / 'data.yaml').write_text(''.join(lines))


def class_folders(folder, counts=(('cat', 5), ('dog', 5))):
    for kind, count in counts:
        write_photos(folder / kind, *(f'{kind}{i}.png' for i in range(count)))
    return folder


def data_set(config, part):
    """The data set of a config's dataloader."""
    from mmengine.registry import DATASETS, init_default_scope

    init_default_scope(config.default_scope)
    return DATASETS.build(config[f'{part}_dataloader'].dataset)


def assert_used(printed, train, val):
    assert f'used  {train:10} training images' in printed
    assert f'used  {val:10} validation images' in printed


def has(text, words):
    """True if a text has all words, which ' ... ' separates; white space does not count."""
    text = ' '.join(text.split())
    return all(word in text for word in words.split(' ... '))
