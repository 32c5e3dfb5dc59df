"""What the page shows of a model and an image: pictures, captions and tables."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from math import prod
from pathlib import Path
from time import perf_counter

import numpy as np
import torch
from example_images import Example, examples
from explain import FeatureExtractor, attention_layers, attention_map, principal_colours
from mmengine.config import Config
from picture import largest_classes
from PIL import Image, ImageDraw

from cpvt_backbones.analysis.matching import match
from cpvt_backbones.checkpoints import locate_checkpoint
from cpvt_backbones.inference import (
    GoodSizes,
    ImageError,
    Inferencer,
    ToolboxPredictor,
    image_size,
    read_image,
)
from cpvt_backbones.inference.drawing import OPACITY, draw_prediction, label_font
from cpvt_backbones.inference.predictions import Prediction
from cpvt_backbones.inference.sizes import Scale, fit
from cpvt_backbones.toolboxes import read_config
from cpvt_backbones.weights import (
    FOLDER,
    PublishedWeights,
    published_weights,
    shipped_weights,
)

READ_PIXELS = 50_000_000  # maximum of a file
KEPT_SIDE = 2048  # px; larger images are reduced when they are read
MAX_SIDE = 1024  # px, the longer side of an image in the model
FIRST_SIDE = 512  # px, of the image whose features are shown first
SHOWN = (720, 720)  # px that pictures fit in
DASH = 10  # px, of the outline of a missed object
FACTORS = (0.5, 1, 2)  # of the first scale, the sizes that are compared
LOWEST_SCORE = 0.05  # of the boxes that are kept, which the page filters
VALUES = dict(
    detection='Boxes', panoptic='Pixels', segmentation='Pixels', classification='Probability'
)

Captioned = tuple[Image.Image, str]


@dataclass(eq=False)
class Model:
    """A trained model, loaded at first use."""

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

    @cached_property
    def first_side(self) -> int:
        """Longer side in px of the image whose features are shown first: a good one, if known."""
        sizes = None if self.published else GoodSizes.of(self.checkpoint)
        largest = FIRST_SIDE if sizes is None else int(sizes.high * sizes.side)
        return max(32, min(FIRST_SIDE, largest // 32 * 32))

    @property
    def published(self) -> PublishedWeights | None:
        """Its entry of the index, if others have published it: it is downloaded at first use."""
        return published_weights().get(self.checkpoint)

    def fetch(self) -> None:
        """Download a published model that is not there yet; ``CheckpointError`` if it fails."""
        if self.published is not None:
            locate_checkpoint(self.checkpoint)

    @cached_property
    def layers(self) -> list[str]:
        """Names of its attention layers, from the first on."""
        return [*attention_layers(self.extractor)]

    def release(self) -> None:
        """Free the memory of its weights; the next use reads them again."""
        for part in ('predictor', 'extractor'):
            self.__dict__.pop(part, None)

    def describe(self) -> str:
        """What it is for and its classes, as Markdown: of a shipped model from its card, of a
        published one from the index, without loading it.
        """
        if self.published is not None:
            return describe_published(self.published)
        if self.checkpoint in shipped_weights():
            card = (FOLDER / f'{self.checkpoint}.md').read_text(encoding='utf-8')
            parts = ('**For.**', '**Not for.**', '**Classes.**')
            return '\n\n'.join(part for part in card.split('\n\n') if part.startswith(parts))
        classes = ', '.join(self.predictor.classes or ()) or 'without names'
        return f'Given on the command line, for {self.predictor.task}.\n\n**Classes.** {classes}.'


def describe_published(entry: PublishedWeights) -> str:
    """What a published model is, its score and source, its size and licence, as Markdown."""
    scores = ', '.join(f'{metric} {value}' for metric, value in entry.scores.items())
    return (
        f'{entry.about}: {entry.task}.\n\n**Published score.** {scores} ({entry.source}).\n\n'
        f'**Download.** {megabytes(entry)} at the first use. Licence: {entry.license}.'
    )


def megabytes(entry: PublishedWeights) -> str:
    """Approximate size of a file with four bytes a parameter."""
    return f'{4 * entry.parameters / 1e6:,.0f} MB'


def list_models(device: str | None, given: tuple[Config, str] | None = None) -> dict[str, Model]:
    """The models by name: that of ``given`` (config, checkpoint) first, then those that ship, in
    the order of their examples, then those that others have published.
    """
    models = {}
    if given is not None:
        models[Path(given[1]).name] = Model(lambda: given[0], given[1], device)
    for example in examples():
        config = shipped_weights()[example.model].config_file
        models[example.model] = Model(partial(read_config, config), example.model, device)
    for name, entry in published_weights().items():
        read = partial(read_config, entry.config_file)
        models.setdefault(name, Model(read, name, device))
    return models


def release_others(models: Mapping[str, Model], chosen: str) -> None:
    """Free all published models but the chosen one: only one is kept in memory."""
    for name, model in models.items():
        if name != chosen and model.published is not None:
            model.release()


@lru_cache(maxsize=4)
def read_upload(file: str) -> np.ndarray:
    """The image of a file as models see it, (H, W, 3), RGB; ``ImageError`` if it cannot be used."""
    size = image_size(file)
    if size is not None and prod(size) > READ_PIXELS:
        limit = f'{READ_PIXELS // 10**6} megapixels are accepted'
        raise ImageError('image', f'{size[0]} x {size[1]} px are too many; at most {limit}')
    image = read_image(file, name='image')
    if max(image.shape) > KEPT_SIDE:
        image = fit(image, (KEPT_SIDE, KEPT_SIDE))
    return image[..., ::-1].copy()


def explain(
    model: Model, file: str, side: int, number: int, across: int, down: int
) -> tuple[list[Captioned], Image.Image | None, str]:
    """Colours of each level's features; where a layer attends to from a point, and its caption.

    ``number`` counts the attention layers from 1; beyond the last, it is the last. In percent, the
    point is ``across`` from the left and ``down`` from the top. No attention is shown of a backbone
    that has none, or has windows of another package.
    """
    rgb = read_upload(file)
    shown = Image.fromarray(fit(rgb, SHOWN))
    images = model.extractor.normalise(fit(rgb, (side, side)))
    height, width = images.shape[2:]
    with torch.no_grad():
        levels = model.extractor(images)
    features = []
    for (level,) in sorted(levels, key=lambda one: -one.shape[3]):  # from the smallest stride on
        caption = f'{width} x {height} px as a map of {level.shape[2]} x {level.shape[1]} cells'
        features.append((_enlarge(principal_colours(level), shown.size), caption))
    if not model.layers:
        return features, None, 'The backbone has no attention layers.'
    number = min(round(number), len(model.layers))
    layer = model.layers[number - 1]
    x, y = int(across / 100 * (width - 1)), int(down / 100 * (height - 1))
    try:
        weights = attention_map(model.extractor, images, layer, x=x, y=y)
    except ValueError as error:
        return features, None, f'No attention is shown: {error}.'
    strength = _enlarge((weights / weights.max()).sqrt(), shown.size)
    dark = Image.blend(shown, Image.new('RGB', shown.size), 0.55)
    picture = Image.composite(Image.new('RGB', shown.size, 'darkorange'), dark, strength)
    centre = across / 100 * shown.width, down / 100 * shown.height
    ImageDraw.Draw(picture).circle(centre, 8, fill='white', outline='black', width=2)
    share = f'strongest cell: {weights.max():.1%} of the attention'
    return features, picture, f'Layer {number} of {len(model.layers)} ({layer}); {share}'


def _enlarge(cells: torch.Tensor, size: tuple[int, int]) -> Image.Image:
    """Values in [0, 1] as an image of (width, height) px, each cell one square."""
    image = Image.fromarray((255 * cells.numpy() + 0.5).astype(np.uint8))
    return image.resize(size, Image.Resampling.NEAREST)


@lru_cache(maxsize=16)
def predict(model: Model, file: str, scale: Scale) -> Prediction:
    """The prediction, of a detector with all boxes from ``LOWEST_SCORE`` on.

    It also has ``seen``, the image as the model sees it, (H, W, 3), BGR, ``warning`` if that is no
    good size, and the ``milliseconds`` that it took; of a classifier ``probabilities`` of all
    classes.
    """
    inferencer = Inferencer(predictor=model.predictor, scale=scale)
    image = read_upload(file)[..., ::-1].copy()
    start = perf_counter()
    found, _ = inferencer(image, score_thr=LOWEST_SCORE)
    found['milliseconds'] = 1000 * (perf_counter() - start)
    found['seen'] = seen = inferencer.sizing(image)
    found['warning'] = inferencer.sizing.warning(image.shape[1::-1], seen.shape[1::-1])
    if model.predictor.task == 'classification':
        (output,) = model.predictor.predict([seen])
        found['probabilities'] = output['scores']
    return found


def first_scale(model: Model, file: str) -> Scale:
    """The test scale; for a model tested on images as they are, the factor to the size of those."""
    own = read_upload(file).shape[1::-1]
    sizing = Inferencer(predictor=model.predictor, scale='config').sizing
    if sizing.sizes is None or sizing.steps:
        return 'config'
    return min(sizing.sizes.side / prod(own) ** 0.5, MAX_SIDE / max(own))


def scales_to_compare(model: Model, file: str) -> dict[float, str]:
    """Factors of an image at which it has the pixels of ``FACTORS`` times the first scale.

    The remark of a factor, if not empty, says which ones it replaces because of ``MAX_SIDE``.
    """
    own = read_upload(file).shape[1::-1]
    sizing = Inferencer(predictor=model.predictor, scale=first_scale(model, file)).sizing
    first = (prod(sizing.size_of(*own)) / prod(own)) ** 0.5
    largest = MAX_SIDE / max(own)
    scales = {min(factor * first, largest): '' for factor in FACTORS}
    replaced = [f'{factor:g}' for factor in FACTORS if factor * first > largest]
    if replaced:
        times = ' and '.join(replaced)
        scales[largest] = f'the largest size of this page: {times} times would exceed {MAX_SIDE} px'
    return scales


def show_image(file: str) -> Captioned:
    """The image without a prediction."""
    rgb = read_upload(file)
    return Image.fromarray(fit(rgb, SHOWN)), f'{rgb.shape[1]} x {rgb.shape[0]} px | the image'


def keep_scores(found: Prediction, score: float) -> Prediction:
    """The boxes of at least this score; other predictions as they are."""
    if 'scores' not in found:
        return found
    kept = [i for i, one in enumerate(found['scores']) if one >= score]
    columns = [key for key, value in found.items() if isinstance(value, list)]
    return {**found, **{key: [found[key][i] for i in kept] for key in columns}}


def draw(
    model: Model, file: str, found: Prediction, *, as_seen: bool, opacity: float = OPACITY
) -> Captioned:
    """The prediction with its legend, on the image itself or as the model sees it, and a caption.

    The caption has the size that the model sees and the time of the prediction, where the truth is
    known how much of it is right, and of the model's own example whether the model is good at this
    size. Labelled objects that the model missed have a dashed outline.
    """
    rgb, seen = read_upload(file), found['seen']
    texts = [f'{seen.shape[1]} x {seen.shape[0]} px, {found["milliseconds"]:.0f} ms']
    example = next((one for one in examples() if np.array_equal(one.image, rgb)), None)
    truth = example if example is not None and example.model == model.checkpoint else None
    missed: list[int] = []
    classes = model.predictor.classes
    if 'label' in found:
        texts.append(f'{found["class"] or found["label"]} {found["score"]:.0%}')
    elif 'boxes' in found and truth is None:
        texts.append(f'{len(found["boxes"])} boxes')
    elif 'boxes' in found:
        missed = missed_objects(found, truth)
        texts += count_objects(found, truth, [classes[truth.labels[i]] for i in missed])
    elif 'segments' in found:
        texts.append(f'{len(found["segments"])} segments')
    else:
        texts.append(largest_classes(found['seg_map'], classes))
    if model.predictor.sizes is not None and found['warning']:
        texts.append('outside the good sizes')
    elif model.predictor.sizes is not None and truth is not None:
        # Of another image it is not known: its objects may be of any size.
        texts.append(truth.note or 'good size')
    if truth is None and example is not None:
        texts.append('this model is not for such images')
    elif truth is None and model.checkpoint in shipped_weights():
        texts.append('your own image: read what this model is for')
    shown = fit(seen[..., ::-1] if as_seen else rgb, SHOWN).copy()
    drawn = draw_prediction(shown, found, model.predictor, rgb.shape[1::-1], opacity=opacity)
    picture = Image.fromarray(drawn)
    for i in missed:
        box = truth.boxes[i] * np.tile(np.divide(picture.size, rgb.shape[1::-1]), 2)
        _draw_missed(picture, box.tolist(), classes[truth.labels[i]])
    return picture, ' | '.join(texts)


def missed_objects(found: Prediction, truth: Example) -> list[int]:
    """Indices of the labelled objects without a box."""
    met = match(found['boxes'], found['labels'], truth.boxes, truth.labels)
    return sorted(set(range(len(truth.boxes))).difference(met.tolist()))


def count_objects(found: Prediction, truth: Example, missed: Sequence[str]) -> list[str]:
    """How many labelled objects are found, and how many of each class are ``missed``."""
    count = len(truth.boxes) - len(missed)
    false = len(found['boxes']) - count
    boxes = f'{false} false box{"" if false == 1 else "es"}'
    texts = [f'{count} of the {len(truth.boxes)} labelled cells found, {boxes}']
    if missed:
        counts = [f'{number} {name}' for name, number in Counter(missed).most_common()]
        texts.append(f'missed (dashed outlines): {", ".join(counts)}')
    return texts


def _draw_missed(picture: Image.Image, box: Sequence[float], name: str) -> None:
    """Outline an object x1, y1, x2, y2 in white dashes on black, with its class in the middle."""
    draw = ImageDraw.Draw(picture)
    left, top, right, bottom = box
    draw.rectangle((left, top, right, bottom), outline='black', width=3)
    for x in np.arange(left, right, 2 * DASH):
        for y in (top + 1, bottom - 1):
            draw.line((x, y, min(x + DASH, right), y), fill='white', width=3)
    for y in np.arange(top, bottom, 2 * DASH):
        for x in (left + 1, right - 1):
            draw.line((x, y, x, min(y + DASH, bottom)), fill='white', width=3)
    middle, font = ((left + right) / 2, (top + bottom) / 2), label_font(18)
    style = dict(fill='white', stroke_fill='black', stroke_width=3)
    draw.text(middle, f'missed\n{name}', font=font, anchor='mm', align='center', **style)


def has_masks(found: Prediction) -> bool:
    """Whether masks are drawn over the image."""
    return not found.keys().isdisjoint(('seg_map', 'panoptic', 'masks'))


def to_table(model: Model, found: Prediction) -> str:
    """What was found of each class, the most first, as Markdown; of a classifier the top five."""
    task, names = model.predictor.task, model.predictor.classes
    if task == 'detection':
        amounts, form = np.bincount(found['labels']), '{}'
    elif task == 'panoptic':
        columns = ([one[key] for one in found['segments']] for key in ('label', 'area'))
        labels, areas = (np.array(column, int) for column in columns)
        amounts, form = np.bincount(labels, areas) / found['panoptic'].size, '{:.1%}'
    elif task == 'segmentation':
        amounts, form = np.bincount(found['seg_map'].ravel()) / found['seg_map'].size, '{:.1%}'
    else:
        amounts, form = found['probabilities'], '{:.1%}'
    rows = [f'| Class | {VALUES[task]} |', '| --- | --- |']
    for label in np.argsort(-amounts)[: 5 if task == 'classification' else None]:
        if amounts[label]:
            name = names[label] if names else label
            rows.append(f'| {name} | {form.format(amounts[label])} |')
    return '\n'.join(rows)
