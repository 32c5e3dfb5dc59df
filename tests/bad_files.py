"""A folder with every kind of image file, good and bad."""

import struct
import zlib
from pathlib import Path

import numpy as np
from PIL import Image

# name -> start of the error
BAD = {
    'dangling.png': "a link to 'nowhere.png', which does not exist",
    'empty.jpg': 'the file is empty',
    'folder.png': 'a folder, not a file',
    'float.tif': "32 bits per channel (mode 'F') have no agreed range",
    'text.jpg': 'not an image of an accepted format (BMP, GIF, JPEG',
    'truncated.jpg': 'damaged: image file is truncated',
    'truncated.png': 'damaged: ',
    'truncated_progressive.jpg': 'damaged: image file is truncated',
}
# name -> width and height, upright
GOOD = {
    'alpha.png': (40, 30),
    'animated.gif': (33, 22),
    'cmyk.jpg': (40, 30),
    'grey_16.png': (40, 30),
    'line.png': (5000, 1),
    'palette.png': (40, 30),
    'photo.jpg': (40, 30),
    'point.png': (1, 1),
    'turned.jpg': (30, 40),
}


def picture(height=30, width=40):
    """RGB: red grows to the right, green downwards."""
    image = np.zeros((height, width, 3), np.uint8)
    image[..., 0] = np.linspace(0, 255, width)
    image[..., 1] = np.linspace(0, 255, height)[:, None]
    return image


def write_folder(folder: Path) -> Path:
    """All files of BAD and GOOD."""
    folder.mkdir()
    photo = Image.fromarray(picture())
    photo.save(folder / 'photo.jpg', quality=95)

    (folder / 'dangling.png').symlink_to('nowhere.png')
    (folder / 'empty.jpg').touch()
    (folder / 'folder.png').mkdir()
    (folder / 'text.jpg').write_text('no image at all')
    Image.fromarray(np.zeros((4, 4), np.float32)).save(folder / 'float.tif')
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8))
    for name, options in (
        ('truncated.jpg', {}),
        ('truncated_progressive.jpg', dict(progressive=True)),
        ('truncated.png', {}),
    ):
        noise.save(folder / name, **options)
        data = (folder / name).read_bytes()
        (folder / name).write_bytes(data[: len(data) * 2 // 3])

    alpha = np.dstack((picture(), np.full((30, 40), 7, np.uint8)))
    Image.fromarray(alpha).save(folder / 'alpha.png')
    frames = [Image.new('P', (33, 22), colour) for colour in (3, 9)]
    for frame in frames:
        frame.putpalette([value for i in range(256) for value in (i * 20 % 256, i, 255 - i)])
    frames[0].save(folder / 'animated.gif', save_all=True, append_images=frames[1:])
    photo.convert('CMYK').save(folder / 'cmyk.jpg', quality=95)
    Image.fromarray((np.arange(1200).reshape(30, 40) * 54).astype(np.uint16)).save(
        folder / 'grey_16.png'
    )
    photo.quantize(64).save(folder / 'palette.png', transparency=bytes(range(64)))
    Image.fromarray(picture(1, 5000)).save(folder / 'line.png')
    Image.new('RGB', (1, 1), (10, 20, 30)).save(folder / 'point.png')
    exif = Image.Exif()
    exif[0x0112] = 6
    photo.save(folder / 'turned.jpg', quality=95, exif=exif)
    return folder


def write_huge_header(path: Path) -> Path:
    """The header of a PNG of 30,000 x 30,000 px, without pixels."""
    header = struct.pack('>IIBBBBB', 30_000, 30_000, 8, 2, 0, 0, 0)
    chunk = (
        struct.pack('>I', len(header))
        + b'IHDR'
        + header
        + struct.pack('>I', zlib.crc32(b'IHDR' + header))
    )
    path.write_bytes(b'\x89PNG\r\n\x1a\n' + chunk + struct.pack('>I', 4) + b'IDAT')
    return path
