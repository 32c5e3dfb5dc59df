"""make_bccd.py: BCCD becomes a data set that mmdet reads."""

import json

import cv2
import numpy as np
import pytest
from mmengine.config import Config
from tiny_configs import ROOT

VOC = """<annotation><object><name>WBC</name><bndbox>
<xmin>1</xmin><ymin>5</ymin><xmax>40</xmax><ymax>30</ymax></bndbox>
</object><object><name>{}</name><bndbox>
<xmin>7</xmin><ymin>7</ymin><xmax>{}</xmax><ymax>9</ymax></bndbox></object>
</annotation>"""


def test_boxes_and_images_are_what_mmdet_reads(tmp_path, call, refused, capsys):
    """Pascal VOC's boxes, counted from 1 with the last pixel, become what mmdet's CocoDataset
    reads.
    """
    pytest.importorskip('mmdet')
    from mmdet.datasets import CocoDataset

    source, made = tmp_path / 'BCCD', tmp_path / 'made'
    for folder in ('Annotations', 'ImageSets/Main', 'JPEGImages'):
        (source / folder).mkdir(parents=True)
    for split, names in (('train', 'ab'), ('val', 'c'), ('test', 'd')):
        (source / 'ImageSets/Main' / f'{split}.txt').write_text('\n'.join(names) + '\n')
        for name in names:
            (source / 'Annotations' / f'{name}.xml').write_text(VOC.format('RBC', 7))
            cv2.imwrite(str(source / 'JPEGImages' / f'{name}.jpg'), np.zeros((30, 40, 3), np.uint8))
    call('make_bccd', source, made)
    assert f'{made / "train"}: 2 images, 4 boxes' in capsys.readouterr().out
    base = Config.fromfile(ROOT / 'configs/_base_/datasets/bccd.py')
    for split, count in (('train', 2), ('val', 1), ('test', 1)):
        data = CocoDataset(
            data_root=str(made),
            ann_file=f'annotations/{split}.json',
            data_prefix=dict(img=f'{split}/'),
            metainfo=base.metainfo,
            pipeline=[],
        )
        assert len(data) == count
        for index in range(count):
            info = data.get_data_info(index)
            assert cv2.imread(info['img_path']).shape == (30, 40, 3)
            found = {
                base.metainfo['classes'][one['bbox_label']]: one['bbox']
                for one in info['instances']
            }
            assert found == dict(WBC=[0, 4, 40, 30], RBC=[6, 6, 7, 9])
    (source / 'Annotations/d.xml').write_text(VOC.format('RBC', 43))
    call('make_bccd', source, made)
    assert 'boxes are clipped to their image: ' in capsys.readouterr().out
    assert json.loads((made / 'annotations/test.json').read_text())['annotations'][1]['bbox'] == [
        6,
        6,
        34,
        3,
    ]
    for name, right, message in (
        ('RBC', 6, 'objects whose corners are in the wrong order'),
        ('RBC', '', 'objects without four numbers in bndbox'),
        ('dog', 9, "category_id 'dog'"),
    ):
        (source / 'Annotations/d.xml').write_text(VOC.format(name, right))
        assert message in refused('make_bccd', source, made)
    (source / 'Annotations/d.xml').write_text('<annotation>')
    assert 'files that are not XML' in refused('make_bccd', source, made)
