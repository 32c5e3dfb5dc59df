"""Image files as arrays, for training, prediction and own data.

| module | content |
| --- | --- |
| ``raster`` | files with any bands: NumPy, TIFF, JPEG 2000 and formats that OpenCV reads |
| ``value_range`` | a range of values, or chosen bands of a file, as 8 bits |
| ``finding`` | image files of folders and patterns |
| ``reading`` | a file as (H, W, 3) uint8 BGR, with the EXIF rotation applied, or why not |
| ``windows`` | files larger than memory, and georeferenced class maps |
"""

from .finding import IMAGE_SUFFIXES, find_images, search_images
from .reading import ImageError, ImageInput, image_size, read_image
from .value_range import ValueRange
