"""The example of Ray Data in docs/scale.md, on a local cluster."""

import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cpvt_backbones.inference import Inferencer

ray = pytest.importorskip('ray')

pytestmark = pytest.mark.full

ROOT = Path(__file__).resolve().parents[2]
NAME = 'cpvt_tiny_gap-imagenette'


def test_the_example_gives_the_predictions_of_one_process(tmp_path, monkeypatch):
    import pandas

    (block,) = re.findall(r'```python\n(.*?)```', (ROOT / 'docs/scale.md').read_text(), re.DOTALL)
    (tmp_path / 'photos').mkdir()
    noise = np.random.default_rng(0).integers(0, 255, (6, 40, 50, 3), np.uint8)
    for index, pixels in enumerate(noise):
        Image.fromarray(pixels).save(tmp_path / f'photos/{index}.png')
    (tmp_path / 'photos/bad.png').write_bytes(b'no image')
    block = block.replace("cfg='CONFIG', checkpoint='CHECKPOINT'", f'checkpoint={NAME!r}')
    block = block.replace('photos/', f'{tmp_path}/photos').replace('out/ray', f'{tmp_path}/ray')
    path = os.pathsep.join([str(ROOT), os.environ.get('PYTHONPATH', '')])
    environment = dict(env_vars=dict(PYTHONPATH=path))
    ray.init(num_cpus=2, include_dashboard=False, runtime_env=environment)
    try:
        exec(block, {})
    finally:
        ray.shutdown()
    rows = pandas.concat(map(pandas.read_parquet, (tmp_path / 'ray').iterdir()))
    found = {Path(row.path).name: row for row in rows.itertuples()}
    assert len(rows) == 7 and 'not an image' in found['bad.png'].error
    inferencer = Inferencer(checkpoint=NAME)
    for index in range(6):
        prediction, _ = inferencer(tmp_path / f'photos/{index}.png')
        given = json.loads(found[f'{index}.png'].prediction)
        assert given['label'] == prediction['label']
        assert given['score'] == pytest.approx(prediction['score'], abs=1e-4)
