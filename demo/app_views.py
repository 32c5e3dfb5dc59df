"""What the page shows of a model and an image: pictures, captions and tables."""

import base64
import html
import io
import re
import time
from collections.abc import Iterator, Sequence
from functools import cached_property
from math import log2, prod
from pathlib import Path

import numpy as np
import torch
from example_images import Example
from mmengine.config import Config
from PIL import Image, ImageDraw
from torch.nn import functional
from torchvision.ops import box_iou

from cpvt_backbones.analysis.attention_maps import (
    attention_layers,
    attention_weights,
    map_of_query,
    query_at,
)
from cpvt_backbones.analysis.features import FeatureExtractor, principal_colours
from cpvt_backbones.inference import Inferencer, ToolboxPredictor, read_image
from cpvt_backbones.inference.drawing import class_colours, draw_prediction
from cpvt_backbones.inference.predictions import Prediction
from cpvt_backbones.inference.sizes import fit, fitted_size
from cpvt_backbones.toolboxes import read_config
from cpvt_backbones.weights import FOLDER, shipped_weights

READ_PIXELS = 50_000_000  # maximum of a file
KEPT_SIDE = 2048  # px; larger images are reduced when they are read
SIDES = (32, 1024)  # px, the longer side of an image in the model
FACTORS = (0.5, 1, 1.5, 2, 3)  # of the test scale, the sizes that are compared
LOWEST_SCORE = 0.05  # of the boxes that are kept, which the page filters
SHOWN_SIDE = 720  # px, the longer side of maps of features and attention
CARD = re.compile(r'^\*\*(For|Not for|Classes)\.\*\* (.+?)\n\n', re.DOTALL | re.MULTILINE)

Picture = tuple[np.ndarray, str]  # (H, W, 3), RGB, and its caption


class Model:
    """A trained model, loaded at first use."""

    def __init__(self, name: str, cfg: Config | str, checkpoint: str, device: str | None) -> None:
        self.name, self._given, self._checkpoint, self._device = name, cfg, checkpoint, device

    @cached_property
    def _cfg(self) -> Config:
        return read_config(self._given) if isinstance(self._given, str) else self._given

    @cached_property
    def predictor(self) -> ToolboxPredictor:
        """The whole model; ``ValueError`` for one that does not read RGB images of 8 bits."""
        predictor = ToolboxPredictor(
            cfg=self._cfg, checkpoint=self._checkpoint, device=self._device
        )
        if predictor.value_range is not None:
            raise ValueError(
                f'the page takes RGB images of 8 bits; {self.name} reads others, by LoadRange:'
                ' tools/infer.py predicts on its images'
            )
        return predictor

    @cached_property
    def extractor(self) -> FeatureExtractor:
        """Its backbone."""
        return FeatureExtractor(self._cfg, self._checkpoint)

    def inferencer(self, side: int) -> Inferencer:
        """The model at a longer side in px; 0: at the test scale of its config."""
        return Inferencer(predictor=self.predictor, scale=(side, side) if side else 'config')

    def describe(self) -> str:
        """What it is for and its classes, as Markdown: of a shipped model from its card."""
        card = FOLDER / f'{self.name}.md'
        if self.name in shipped_weights():
            found = CARD.findall(card.read_text(encoding='utf-8'))
            return '\n\n'.join(f'**{key}:** {" ".join(text.split())}' for key, text in found)
        classes = ', '.join(self.predictor.classes or ()) or 'without names'
        return f'Given on the command line, for {self.predictor.task}.\n\n**Classes:** {classes}.'


def list_models(device: str | None, given: tuple[Config, str] | None = None) -> dict[str, Model]:
    """The models by name: that of ``given`` (config, checkpoint) first, then those that ship."""
    models = [
        Model(entry.name, str(entry.config_file), entry.name, device)
        for entry in shipped_weights().values()
    ]
    if given is not None:
        models.insert(0, Model(Path(given[1]).name, *given, device))
    return {model.name: model for model in models}


def to_html(pictures: Sequence[Picture]) -> str:
    """Pictures with their captions as HTML, the pictures inside of it."""
    figures = ''
    for picture, caption in pictures:
        stream, text = io.BytesIO(), html.escape(caption)
        Image.fromarray(picture).save(stream, format='JPEG', quality=90, subsampling=0)
        data = base64.b64encode(stream.getvalue()).decode()
        image = f'<img src="data:image/jpeg;base64,{data}" alt="">'
        figures += f'<figure>{image}<figcaption>{text}</figcaption></figure>'
    return f'<div class="figures">{figures}</div>'


def count_heads(model: Model) -> tuple[int, int]:
    """Number of attention layers, and of the heads of the widest."""
    layers = attention_layers(model.extractor).values()
    return len(layers), max((getattr(one, 'num_heads', 1) for one in layers), default=1)


def read_upload(file: str) -> np.ndarray:
    """The image of a file as models see it, (H, W, 3), RGB, sides of at most ``KEPT_SIDE``.

    Raises ``ImageError`` for what is no image, and for one of more than ``READ_PIXELS``.
    """
    image = read_image(file, name='image', read_limit=READ_PIXELS)
    if max(image.shape) > KEPT_SIDE:
        image = fit(image, (KEPT_SIDE, KEPT_SIDE))
    return np.ascontiguousarray(image[..., ::-1])


# -- features and attention


def _seen(model: Model, rgb: np.ndarray, side: int) -> tuple[np.ndarray, torch.Tensor]:
    """The image at a longer side, (h, w, 3), and normalised, (1, 3, h, w)."""
    small = fit(rgb, (side, side))
    return small, model.extractor.normalise([small])


def enlarged_size(rgb: np.ndarray) -> tuple[int, int]:
    """Height and width in px at which maps are shown."""
    width, height = fitted_size(rgb.shape[1], rgb.shape[0], (SHOWN_SIDE, SHOWN_SIDE))
    return height, width


def _enlarge(cells: torch.Tensor, rgb: np.ndarray) -> np.ndarray:
    """Colours (h, w, 3) in [0, 1] as an image of the shape of ``rgb``, each cell one square."""
    height, width = enlarged_size(rgb)
    image = Image.fromarray((255 * cells.numpy() + 0.5).astype(np.uint8))
    return np.asarray(image.resize((width, height), Image.Resampling.NEAREST))


def show_features(model: Model, rgb: np.ndarray, side: int) -> tuple[list[Picture], str]:
    """Three principal components of each level's features as colours, and facts.

    The level that is nearest to patches of 16 px is first: it is the trunk's own.
    """
    small, images = _seen(model, rgb, side)
    started = time.perf_counter()
    with torch.no_grad():
        maps = model.extractor(images)
    pictures = []
    for (level,) in sorted(maps, key=lambda one: abs(log2(small.shape[1] / one.shape[3] / 16))):
        rows, columns = level.shape[1:]
        stride = round(small.shape[1] / columns)
        caption = f'{columns} x {rows} places, one for {stride} x {stride} px'
        pictures.append((_enlarge(principal_colours(level), rgb), caption))
    return pictures, _facts(rgb, small.shape[1::-1], time.perf_counter() - started)


def show_attention(
    model: Model, rgb: np.ndarray, side: int, layer: int, head: int, across: float, down: float
) -> tuple[np.ndarray, str]:
    """Where a layer attends to from a point, as a picture, and facts.

    ``layer`` and ``head`` count from 1, and too large ones are the last; head 0 is the mean of all.
    The point is ``across`` percent from the left and ``down`` percent from the top.
    """
    small, images = _seen(model, rgb, side)
    height, width = small.shape[:2]
    layers = [*attention_layers(model.extractor)]
    name = layers[min(layer, len(layers)) - 1]
    started = time.perf_counter()
    found = attention_weights(model.extractor, images, name)
    x, y = (
        min(int(share * side / 100), side - 1) for share, side in ((across, width), (down, height))
    )
    weights = map_of_query(found, query_at(found, x=x, y=y, height=height, width=width))[0]
    seconds = time.perf_counter() - started
    one = weights[min(head, len(weights)) - 1] if head else weights.mean(0)
    strength = _enlarge((one / one.max()).sqrt()[..., None].expand(-1, -1, 3), rgb) / 255
    shown = fit(rgb, (SHOWN_SIDE, SHOWN_SIDE))
    orange = np.array((255, 140, 0))
    image = Image.fromarray(np.uint8(0.45 * shown * (1 - strength) + orange * strength))
    centre = (across * image.width / 100, down * image.height / 100)
    for radius, ink in ((9, 'black'), (7, 'white')):
        ImageDraw.Draw(image).circle(centre, radius, outline=ink, width=3)
    which = f'head {min(head, len(weights))} of {len(weights)}' if head else 'mean of all heads'
    text = f'{name.removeprefix("backbone.")}, {which}; brightest: {one.max():.1%} of the attention'
    return np.asarray(image), f'Attention: {text}. {seconds:.2f} s.'


# -- predictions


def predict(model: Model, rgb: np.ndarray, side: int) -> tuple[Prediction, str]:
    """The prediction, of a detector with all boxes from ``LOWEST_SCORE`` on, and facts.

    That of a classifier has ``scores`` of all classes.
    """
    inferencer, started = model.inferencer(side), time.perf_counter()
    image, own = np.ascontiguousarray(rgb[..., ::-1]), rgb.shape[1::-1]
    seen = inferencer.sizing.size_of(*own)
    found, _ = inferencer(image, score_thr=LOWEST_SCORE)
    if model.predictor.task == 'classification':
        (output,) = model.predictor.predict([inferencer.sizing(image)])
        found['scores'] = output['scores'].tolist()
    warning = inferencer.sizing.warning(own, seen)
    text = _facts(rgb, seen, time.perf_counter() - started)
    return found, f'{text} **Outside the sizes it is good at:** {warning}.' if warning else text


def keep_scores(found: Prediction, score: float) -> Prediction:
    """The boxes of at least this score; other predictions as they are."""
    if 'boxes' not in found:
        return found
    kept = [i for i, one in enumerate(found['scores']) if one >= score]
    columns = {'boxes', 'scores', 'labels', 'classes', 'masks'} & found.keys()
    return {**found, **{key: [found[key][i] for i in kept] for key in columns}}


def draw(model: Model, rgb: np.ndarray, found: Prediction) -> np.ndarray:
    """The prediction on the image."""
    return draw_prediction(rgb.copy(), found, model.predictor, rgb.shape[1::-1])


def list_classes(model: Model, found: Prediction) -> str:
    """The classes of a prediction with their colours, as an HTML table; a classifier's top five."""
    names, colours = model.predictor.classes, class_colours(model.predictor)
    if model.predictor.task == 'classification':
        order = np.argsort(-np.array(found['scores']))[:5].tolist()
        head, values = 'Probability', {i: f'{found["scores"][i]:.1%}' for i in order}
    elif 'seg_map' in found:
        pixels = np.bincount(found['seg_map'].ravel())
        order = [i for i in np.argsort(-pixels, kind='stable').tolist() if pixels[i]]
        head, values = 'Pixels', {i: f'{pixels[i] / pixels.sum():.1%}' for i in order}
    else:
        labels: list[int] = found['labels']
        order = sorted({*labels}, key=labels.index)  # the best box first
        best = {i: found['scores'][labels.index(i)] for i in order}
        head = 'Boxes'
        values = {i: f'{labels.count(i)} (best score {best[i]:.2f})' for i in order}
    rows = ''
    for i in order:
        swatch = f'<span class="swatch" style="background: rgb{tuple(colours[i].tolist())}"></span>'
        name = html.escape(names[i] if names else str(i))
        rows += f'<tr><td>{swatch}{name}</td><td>{values[i]}</td></tr>'
    rows = rows or '<tr><td colspan="2">Nothing of at least this score.</td></tr>'
    return f'<table class="classes"><tr><th>Class</th><th>{head}</th></tr>{rows}</table>'


# -- several sizes


def predict_sizes(model: Model, rgb: np.ndarray) -> Iterator[list[Prediction]]:
    """Predictions at ``FACTORS`` times the test scale, each time with those before it.

    Each has ``seen`` (width, height), px, and whether that is a ``good`` size of the model; of a
    classifier also ``features`` (C, h, w).
    """
    own = rgb.shape[1::-1]
    # The side at which an image of this shape has as many pixels as at the test scale.
    pixels = prod(model.inferencer(0).sizing.size_of(*own))
    base = (pixels * max(own) / min(own)) ** 0.5
    sides = [int(np.clip(round(factor * base), *SIDES)) for factor in FACTORS]
    results: list[Prediction] = []
    for side in dict.fromkeys(sides):
        found, _ = predict(model, rgb, side)
        sizing = model.inferencer(side).sizing
        found['seen'] = seen = sizing.size_of(*own)
        found['good'] = sizing.sizes and not sizing.warning(own, seen)
        if 'class' in found:
            with torch.no_grad():
                found['features'] = model.extractor(_seen(model, rgb, side)[1])[-1][0]
        results.append(found)
        yield results


def draw_sizes(
    model: Model,
    rgb: np.ndarray,
    results: Sequence[Prediction],
    score: float,
    truth: Example | None,
) -> list[Picture]:
    """Pictures of :func:`predict_sizes`, of a classifier of its features.

    The captions compare with the truth, if it is known.
    """
    pictures = []
    for found in results:
        found = keep_scores(found, score)
        caption = f'{found["seen"][0]} x {found["seen"][1]} px: {_verdict(model, found, truth)}'
        if found['good'] is not None:
            caption += ' | good size' if found['good'] else ' | outside the good sizes'
        picture = rgb if 'features' in found else draw(model, rgb, found)
        pictures.append((fit(picture, (SHOWN_SIDE, SHOWN_SIDE)), caption))
    if all('features' in found for found in results):
        captions = [caption for _, caption in pictures]
        return _colour_alike([found['features'] for found in results], rgb, captions)
    return pictures


def _colour_alike(
    maps: Sequence[torch.Tensor], rgb: np.ndarray, captions: Sequence[str]
) -> list[Picture]:
    """Maps (C, h, w) in the colours of their common principal components.

    The captions get the cosine of each place with the same place of the map before, on average.
    """
    cells = torch.cat([one.flatten(1) for one in maps], dim=1)
    colours = principal_colours(cells[:, None])[0].split([one[0].numel() for one in maps])
    pictures = []
    for one, last, shades, caption in zip(maps, [maps[0], *maps], colours, captions, strict=False):
        if last is not one:
            grid = last.shape[1:]
            same = functional.interpolate(one[None], grid, mode='bilinear', antialias=True)[0]
            cosine = functional.cosine_similarity(same, last, dim=0).mean()
            caption += f' | cosine with the features of the size before: {cosine:.2f}'
        pictures.append((_enlarge(shades.unflatten(0, one.shape[1:]), rgb), caption))
    return pictures


def _verdict(model: Model, found: Prediction, truth: Example | None) -> str:
    """What a prediction has right, or, without a truth, what it is."""
    if 'class' in found:
        return f'{found["class"] or found["label"]} {found["score"]:.0%}'
    if 'seg_map' in found:
        if truth is None or truth.classes is None:
            names, pixels = model.predictor.classes, np.bincount(found['seg_map'].ravel())
            largest = int(pixels.argmax())
            return f'{pixels.max() / pixels.sum():.0%} {names[largest] if names else largest}'
        return f'{(found["seg_map"] == truth.classes).mean():.0%} of the pixels right'
    if truth is None or truth.boxes is None or truth.labels is None:
        return f'{len(found["boxes"])} boxes'
    boxes = torch.tensor(found['boxes'], dtype=torch.float64).reshape(-1, 4)
    alike = torch.tensor(found['labels'])[:, None] == torch.tensor(truth.labels)
    hits = (box_iou(boxes, torch.tensor(truth.boxes)) >= 0.5) & alike.reshape(len(boxes), -1)
    count = int(hits.any(0).sum())
    return f'{count} of {len(truth.boxes)} found, {len(boxes) - count} extra'


def _facts(rgb: np.ndarray, seen: Sequence[int], seconds: float) -> str:
    height, width = rgb.shape[:2]
    return f'Image: {width} x {height} px, seen at {seen[0]} x {seen[1]} px. {seconds:.2f} s.'
