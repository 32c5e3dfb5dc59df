"""make_imagenette.py: Imagenette squashed to the squares that the study trains and tests on."""

from pathlib import Path

import cv2
import numpy as np

from cpvt_backbones.engine.decoded import DecodedDataset


def test_images_become_squares_of_one_size(tmp_path, call, refused):
    """The data set of the study reads them; files that exist are kept."""
    rng = np.random.default_rng(0)
    for split, count in (('train', 3), ('val', 5)):
        for name in ('n01', 'n02'):
            folder = tmp_path / 'raw' / split / name
            folder.mkdir(parents=True)
            for index in range(count):
                picture = rng.integers(0, 255, (60 + 10 * index, 90, 3), dtype=np.uint8)
                cv2.imwrite(str(folder / f'{index}.JPEG'), picture)
    call('make_imagenette', tmp_path / 'raw', tmp_path / 'made', '--val-images', '2')
    for split, names, side in (('train', '012', 128), ('val', '02', 224)):
        folder = str(tmp_path / 'made' / split)
        data = DecodedDataset(data_root=folder, cache_dir=str(tmp_path / 'cache'), extensions=('.webp',))
        assert [Path(data.get_data_info(i)['img_path']).stem for i in range(len(data))] == [*names, *names]
        assert [data.get_data_info(i)['gt_label'] for i in range(len(data))] == [0] * len(names) + [1] * len(names)
        assert data.get_data_info(0)['img'].shape == (side, side, 3)
    kept = tmp_path / 'made/train/n01/0.webp'
    kept.write_bytes(b'kept')
    call('make_imagenette', tmp_path / 'raw', tmp_path / 'made', '--val-images', '2')
    assert kept.read_bytes() == b'kept'
    for name, message in (('3.jpg', "n01/3.jpg' cannot be read"), ('0.jpg', "n01' has two images named '0'")):
        (tmp_path / 'raw/train/n01' / name).write_bytes(b'no picture')
        assert message in refused('make_imagenette', tmp_path / 'raw', tmp_path / 'made')
