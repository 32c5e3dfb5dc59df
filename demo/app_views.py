"""What the page shows of a model and an image: pictures, captions and tables."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from math import log2, prod
from pathlib import Path

import numpy as np
import torch
from example_images import Example
from mmengine.config import Config
from PIL import Image, ImageDraw
from torchvision.ops import box_iou

from cpvt_backbones.analysis import attention_maps
from cpvt_backbones.analysis.features import FeatureExtractor, principal_colours
from cpvt_backbones.inference import Inferencer, ToolboxPredictor, read_image
from cpvt_backbones.inference.drawing import draw_prediction
from cpvt_backbones.inference.predictions import Prediction
from cpvt_backbones.inference.sizes import Scale, fit, fitted_size
from cpvt_backbones.toolboxes import read_config
from cpvt_backbones.weights import FOLDER, shipped_weights

READ_PIXELS = 50_000_000  # maximum of a file
KEPT_SIDE = 2048  # px; larger images are reduced when they are read
MAX_SIDE = 1024  # px, the longer side of an image in the model
SHOWN_SIDE = 720  # px, the longer side of pictures
FACTORS = (0.5, 1, 1.5, 2, 3)  # of the test scale, the sizes that are compared
LOWEST_SCORE = 0.05  # of the boxes that are kept, which the page filters
VALUES = dict(detection='Boxes', segmentation='Pixels', classification='Probability')


@dataclass
class Model:
    """A trained model, loaded at first use."""

    name: str
    read_cfg: Callable[[], Config]
    checkpoint: str
    device: str | None

    @cached_property
    def predictor(self) -> ToolboxPredictor:
        """The whole model."""
        return ToolboxPredictor(cfg=self.read_cfg(), checkpoint=self.checkpoint, device=self.device)

    @cached_property
    def extractor(self) -> FeatureExtractor:
        """Its backbone; ``ValueError`` for one that does not read RGB images of 8 bits."""
        return FeatureExtractor(self.read_cfg(), self.checkpoint)

    def describe(self) -> str:
        """What it is for and its classes, as Markdown: of a shipped model from its card."""
        if self.checkpoint in shipped_weights():
            card = (FOLDER / f'{self.checkpoint}.md').read_text(encoding='utf-8')
            return '\n\n'.join(card.split('\n\n')[2:5])  # for, not for, classes
        classes = ', '.join(self.predictor.classes or ()) or 'without names'
        return f'Given on the command line, for {self.predictor.task}.\n\n**Classes.** {classes}.'


def list_models(device: str | None, given: tuple[Config, str] | None = None) -> dict[str, Model]:
    """The models by name: that of ``given`` (config, checkpoint) first, then those that ship."""
    models = []
    if given is not None:
        models.append(Model(Path(given[1]).name, lambda: given[0], given[1], device))
    for name, entry in shipped_weights().items():
        models.append(Model(name, partial(read_config, entry.config_file), name, device))
    return {model.name: model for model in models}


def read_upload(file: str) -> np.ndarray:
    """The image of a file as models see it, (H, W, 3), RGB; ``ImageError`` if it cannot be used."""
    image = read_image(file, name='image', read_limit=READ_PIXELS)
    if max(image.shape) > KEPT_SIDE:
        image = fit(image, (KEPT_SIDE, KEPT_SIDE))
    return image[..., ::-1].copy()


def shown_size(rgb: np.ndarray) -> tuple[int, int]:
    """Width and height in px at which an image is shown."""
    return fitted_size(rgb.shape[1], rgb.shape[0], (SHOWN_SIDE, SHOWN_SIDE))


def _facts(rgb: np.ndarray, seen: Sequence[int], started: float) -> str:
    """The sizes of an image and of what the model has seen of it, and how long that took."""
    height, width = rgb.shape[:2]
    seconds = time.perf_counter() - started
    return f'Image: {width} x {height} px, seen at {seen[0]} x {seen[1]} px. {seconds:.2f} s.'


# -- features and attention


def explain(
    model: Model, rgb: np.ndarray, side: int, depth: int, across: int, down: int
) -> tuple[list[tuple[Image.Image, str]], Image.Image | None, str]:
    """Colours of each level's features, with captions; the attention from a point; facts.

    In percent: the layer of the attention is at ``depth``, the point ``across`` from the left and
    ``down`` from the top. The attention is ``None`` of a backbone that has none, or has windows of
    another package.
    """
    started = time.perf_counter()
    images = model.extractor.normalise([fit(rgb, (side, side))])
    with torch.no_grad():
        levels = model.extractor(images)
    width = images.shape[3]
    features = []
    # First the trunk's own level, of patches of 16 px: the others are made from it.
    for (level,) in sorted(levels, key=lambda one: abs(log2(width / one.shape[3] / 16))):
        rows, columns = level.shape[1:]
        stride = round(width / columns)
        caption = f'{columns} x {rows} places, one for {stride} x {stride} px'
        features.append((_enlarge(principal_colours(level), shown_size(rgb)), caption))
    try:
        attention, text = _attend(model, rgb, images, depth, across, down)
    except ValueError as error:
        attention, text = None, f'No attention is shown: {error}.'
    return features, attention, f'{_facts(rgb, images.shape[:1:-1], started)} {text}'


def _attend(
    model: Model, rgb: np.ndarray, images: torch.Tensor, depth: int, across: int, down: int
) -> tuple[Image.Image, str]:
    """Where a layer attends to from a point, mean of its heads, as a picture, and facts."""
    layers = [*attention_maps.attention_layers(model.extractor)]
    if not layers:
        raise ValueError('the backbone has no attention layers')
    layer = layers[round(depth / 100 * (len(layers) - 1))]
    found = attention_maps.attention_weights(model.extractor, images, layer)
    height, width = images.shape[2:]
    x, y = int(across / 100 * (width - 1)), int(down / 100 * (height - 1))
    query = attention_maps.query_at(found, x=x, y=y, height=height, width=width)
    weights = attention_maps.map_of_query(found, query)[0].mean(0)
    size = shown_size(rgb)
    dark = Image.blend(Image.fromarray(rgb).resize(size), Image.new('RGB', size), 0.55)
    strength = _enlarge((weights / weights.max()).sqrt(), size)
    picture = Image.composite(Image.new('RGB', size, 'darkorange'), dark, strength)
    centre = across / 100 * size[0], down / 100 * size[1]
    ImageDraw.Draw(picture).circle(centre, 8, fill='white', outline='black', width=2)
    return picture, f'Brightest place: {weights.max():.1%} of the attention of {layer}.'


def _enlarge(cells: torch.Tensor, size: tuple[int, int]) -> Image.Image:
    """Values in [0, 1] as an image of (width, height) px, each cell one square."""
    image = Image.fromarray((255 * cells.numpy() + 0.5).astype(np.uint8))
    return image.resize(size, Image.Resampling.NEAREST)


# -- predictions


def predict(model: Model, rgb: np.ndarray, scale: Scale) -> Prediction:
    """The prediction, of a detector with all boxes from ``LOWEST_SCORE`` on.

    It also has ``seen`` (width, height), px, ``warning`` if that is no good size, and ``facts``;
    of a classifier ``probabilities`` of all classes.
    """
    started, size = time.perf_counter(), rgb.shape[1::-1]
    inferencer = Inferencer(predictor=model.predictor, scale=scale)
    image = rgb[..., ::-1].copy()
    found, _ = inferencer(image, score_thr=LOWEST_SCORE)
    if model.predictor.task == 'classification':
        (output,) = model.predictor.predict([inferencer.sizing(image)])
        found['probabilities'] = output['scores']
    found['seen'] = seen = inferencer.sizing.size_of(*size)
    found['warning'] = warning = inferencer.sizing.warning(size, seen)
    found['facts'] = _facts(rgb, seen, started)
    if warning:
        found['facts'] += f' **Outside the sizes it is good at:** {warning}.'
    return found


def scales_to_compare(model: Model, rgb: np.ndarray) -> list[float]:
    """Factors of an image at which it has the pixels of ``FACTORS`` times the test scale."""
    size = rgb.shape[1::-1]
    seen = Inferencer(predictor=model.predictor, scale='config').sizing.size_of(*size)
    test_scale = (prod(seen) / prod(size)) ** 0.5
    largest = MAX_SIDE / max(size)
    return [*dict.fromkeys(min(factor * test_scale, largest) for factor in FACTORS)]


def keep_scores(found: Prediction, score: float) -> Prediction:
    """The boxes of at least this score; other predictions as they are."""
    if 'boxes' not in found:
        return found
    kept = [i for i, one in enumerate(found['scores']) if one >= score]
    columns = [key for key, value in found.items() if isinstance(value, list)]
    return {**found, **{key: [found[key][i] for i in kept] for key in columns}}


def draw(model: Model, rgb: np.ndarray, found: Prediction) -> Image.Image:
    """The prediction on the image."""
    return Image.fromarray(draw_prediction(rgb.copy(), found, model.predictor, rgb.shape[1::-1]))


def to_table(model: Model, found: Prediction) -> str:
    """What was found of each class, as Markdown; of a classifier the top five."""
    texts: dict[int, str] = {}  # by label, the best or largest first
    if 'boxes' in found:
        labels = found['labels']
        for label in dict.fromkeys(labels):
            best = found['scores'][labels.index(label)]
            texts[label] = f'{labels.count(label)} (best score {best:.2f})'
    elif 'seg_map' in found:
        shares = np.bincount(found['seg_map'].ravel()) / found['seg_map'].size
        texts = {label: f'{shares[label]:.1%}' for label in np.argsort(-shares) if shares[label]}
    else:
        shares = found['probabilities']
        texts = {label: f'{shares[label]:.1%}' for label in np.argsort(-shares)[:5]}
    names = model.predictor.classes
    rows = [f'| {names[label] if names else label} | {text} |' for label, text in texts.items()]
    head = f'| Class | {VALUES[model.predictor.task]} |\n| --- | --- |\n'
    return head + '\n'.join(rows) if rows else 'Nothing of at least this score.'


def caption(model: Model, found: Prediction, truth: Example | None) -> str:
    """The size of a prediction, and whether the model is good at it.

    Of a classifier also the class; of others, where the truth is known, how much of it is right.
    """
    texts = [f'{found["seen"][0]} x {found["seen"][1]} px']
    if 'label' in found:
        texts.append(f'{found["class"] or found["label"]} {found["score"]:.0%}')
    if truth is not None and truth.classes is not None:
        texts.append(f'{(found["seg_map"] == truth.classes).mean():.0%} of the pixels right')
    elif truth is not None and truth.boxes is not None:
        boxes = torch.tensor(found['boxes'], dtype=torch.float64).reshape(-1, 4)
        alike = torch.tensor(found['labels']).reshape(-1, 1) == torch.tensor(truth.labels)
        hits = (box_iou(boxes, torch.tensor(truth.boxes)) >= 0.5) & alike
        count = int(hits.any(0).sum())
        texts.append(f'{count} of {len(truth.boxes)} found, {len(boxes) - count} extra')
    if model.predictor.sizes is not None:
        texts.append('outside the good sizes' if found['warning'] else 'good size')
    return ' | '.join(texts)
