"""Memory of tiled prediction stays within the documented limit."""

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

# Pillow's pixels and the array's while one is copied to the other, 7 bytes a pixel; afterwards the
# array and the class map, 4 bytes a pixel, and the logits of a tile and of what two bands share.
BYTES_A_PIXEL = 7
REST = 400 << 20


@pytest.mark.slow
def test_memory_of_a_tiled_image(tmp_path):
    script = f"""
    import json, sys
    sys.path.insert(0, {str(Path(__file__).parent)!r})
    import shapely, torch
    from PIL import Image
    from local_models import LocalSegmentor
    from cpvt_backbones.inference import Inferencer

    class Eleven(LocalSegmentor):
        classes = tuple('abcdefghijk')
        levels = torch.linspace(0, 255, 11)

    def peak():  # not of getrusage, which includes the parent's peak
        lines = open('/proc/self/status')
        return next(int(line.split()[1]) for line in lines if line.startswith('VmHWM')) * 1024

    path, out = {str(tmp_path / 'large.jpg')!r}, {str(tmp_path / 'peaks.json')!r}
    inferencer = Inferencer(predictor=Eleven())
    inferencer(path.replace('large', 'small'))
    before = peak()
    prediction, picture = inferencer(path, vis=True)
    assert prediction['seg_map'].shape == (8000, 8000) and picture.shape[1:] == (2048, 3)
    json.dump([before, peak()], open(out, 'w'))
    """
    from PIL import Image

    for name, side in (('large', 8000), ('small', 1024)):
        Image.radial_gradient('L').resize((side, side)).convert('RGB').save(
            tmp_path / f'{name}.jpg'
        )
    subprocess.run([sys.executable, '-c', textwrap.dedent(script)], check=True)
    before, peak = json.loads((tmp_path / 'peaks.json').read_text())
    pixels = 8000 * 8000
    print(f'{(peak - before) / 2**20:.0f} MiB on top of {before / 2**20:.0f}')
    # The lower bound, the decoded image, shows that the measurement works.
    assert 3 * pixels < peak - before < BYTES_A_PIXEL * pixels + REST
