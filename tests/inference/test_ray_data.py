"""Ray Data on a local cluster: results of a plain run, in both formats, though an actor is
killed.
"""

import base64
import io
import json
import os
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
from folder_runs import write_images
from local_models import LocalSegmentor
from PIL import Image

from cpvt_backbones.inference import Inferencer

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / 'tools'))

from ray_data import predict_with_ray  # noqa: E402

pytestmark = pytest.mark.slow


class KilledOnce(LocalSegmentor):
    """Its process dies at the third call, once; ``folder`` has a file for each process."""

    def __init__(self, folder):
        super().__init__()
        self.folder = folder

    def logits(self, images):
        (self.folder / str(os.getpid())).touch()
        if len(self.forwards) == 2:
            try:
                (self.folder / 'killed').touch(exist_ok=False)
            except FileExistsError:
                pass
            else:
                os.kill(os.getpid(), signal.SIGKILL)
        return super().logits(images)


@pytest.fixture(scope='module')
def cluster():
    ray = pytest.importorskip('ray')
    # The actors import this test's modules and the package from where the test does.
    folders = [str(Path(__file__).parent), str(ROOT)]
    path = os.pathsep.join([*folders, os.environ.get('PYTHONPATH', '')])
    ray.init(num_cpus=2, include_dashboard=False, runtime_env=dict(env_vars=dict(PYTHONPATH=path)))
    yield
    ray.shutdown()


@pytest.mark.parametrize('file_format', ['parquet', 'json'])
def test_two_actors_one_killed(cluster, file_format, tmp_path):
    import pandas

    images = sorted(write_images(tmp_path / 'images', 12).iterdir())
    (tmp_path / 'bad.png').write_bytes(b'no image')
    notes = tmp_path / 'notes'
    notes.mkdir()
    options = dict(predictor=KilledOnce(notes))
    out = tmp_path / 'out'
    predict_with_ray(
        options,
        [*images, tmp_path / 'bad.png'],
        out_dir=out,
        file_format=file_format,
        workers=2,
        batch_size=4,
    )
    assert (notes / 'killed').exists() and len(list(notes.iterdir())) >= 3
    read = (
        pandas.read_parquet
        if file_format == 'parquet'
        else lambda file: pandas.read_json(file, lines=True)
    )
    table = pandas.concat([read(file) for file in out.iterdir()]).set_index('path')
    assert sorted(table.index) == sorted(map(str, [*images, tmp_path / 'bad.png']))
    assert 'not an image' in table.loc[str(tmp_path / 'bad.png'), 'error']
    plain = Inferencer(predictor=LocalSegmentor())
    for image in images:
        row, (expected, _) = table.loc[str(image)], plain(image)
        seg_map = row.seg_map if file_format == 'parquet' else base64.b64decode(row.seg_map)
        np.testing.assert_array_equal(Image.open(io.BytesIO(seg_map)), expected['seg_map'])
        assert (row.height, row.width) == expected['seg_map'].shape and not row.error
        assert row.prediction in ('{}', {}) or json.loads(row.prediction) == {}
    with pytest.raises(ValueError, match='out_dir must be empty'):
        predict_with_ray(options, images, out_dir=out)
