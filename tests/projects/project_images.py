"""Writing images for the tests of the projects."""

import numpy as np
from PIL import Image


def write_image(file, pixels):
    """Write values of 0 to 255 (H, W, 3) or (H, W), and the folder of the file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels.astype(np.uint8)).save(file)
