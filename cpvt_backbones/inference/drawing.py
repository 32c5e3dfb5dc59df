"""Pictures of predictions."""

import cv2
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from .predictors import Predictor
from .tasks import Prediction, decode_mask, resize_classes
from .windows import read_map

OPACITY = 0.6  # of a class's colour over the image


def class_colours(predictor: Predictor) -> np.ndarray:
    """RGB of each class, (N, 3), uint8: the predictor's palette, or random colours."""
    if predictor.palette is not None:
        return np.array(predictor.palette, np.uint8)
    return np.random.default_rng(0).integers(
        0, 256, (len(predictor.classes or ()) or 1 << 16, 3), np.uint8
    )


def draw_prediction(
    rgb: np.ndarray, prediction: Prediction, predictor: Predictor, size: tuple[int, int]
) -> np.ndarray:
    """Draw boxes with classes and scores, and masks; the class of an image.

    Or a class map in the classes' colours.

    ``rgb`` (h, w, 3), from :func:`make_preview`, shows the image of ``size`` (width, height) px
    that was predicted; it may be overwritten.
    """
    height, width = rgb.shape[:2]
    colours = class_colours(predictor)
    if predictor.task == 'segmentation':
        resize_map = resize_classes if isinstance(prediction['seg_map'], np.ndarray) else read_map
        seg_map = resize_map(prediction['seg_map'], height=height, width=width)
        return cv2.addWeighted(rgb, 1 - OPACITY, colours.take(seg_map, axis=0), OPACITY, 0)
    if predictor.task == 'classification':
        prediction = {
            f'{key}es' if key == 'class' else f'{key}s': [value]
            for key, value in prediction.items()
        }
    shades = [tuple(colours[label].tolist()) for label in prediction['labels']]
    for mask, shade in zip(prediction.get('masks', ()), shades, strict=False):
        inside = decode_mask(mask, height=height, width=width)
        rgb[inside] = np.round((1 - OPACITY) * rgb[inside] + OPACITY * np.array(shade))
    picture = Image.fromarray(rgb)
    draw, font = (
        ImageDraw.Draw(picture),
        ImageFont.load_default(max(10, round((height * width) ** 0.5 / 45))),
    )
    factors = np.tile([width / size[0], height / size[1]], 2)
    boxes = (np.array(prediction.get('boxes', [(0, 0, 0, 0)])).reshape(-1, 4) * factors).tolist()
    columns = (prediction[key] for key in ('labels', 'classes', 'scores'))
    for box, shade, label, name, score in zip(boxes, shades, *columns, strict=True):
        if 'boxes' in prediction:
            draw.rectangle(box, outline=shade, width=max(1, round(min(height, width) / 240)))
        text = f'{label if name is None else name} {score:.2f}'
        left, top, right, bottom = draw.textbbox((0, 0), text, font=font)
        at = (
            max(0, min(box[0], width - right)),
            box[1] - bottom if box[1] >= bottom else box[1],
        )  # above, or inside
        draw.rectangle((at[0], at[1], at[0] + right, at[1] + bottom), fill=shade)
        draw.text(at, text, font=font, fill=(0, 0, 0) if sum(shade) > 380 else (255, 255, 255))
    return np.asarray(picture)
