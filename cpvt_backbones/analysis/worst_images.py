"""Picture of the test images with the lowest scores, with labels beside predictions."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import numpy as np
from mmengine.config import Config
from mmengine.dist import all_gather_object, is_main_process
from mmengine.hooks import Hook
from mmengine.registry import HOOKS

from cpvt_backbones.checkpoints import atomic_write
from cpvt_backbones.engine import LoadRange
from cpvt_backbones.engine.class_names import parts_of
from cpvt_backbones.errors import InputError
from cpvt_backbones.images.reading import read_image
from cpvt_backbones.images.windows import no_class
from cpvt_backbones.inference.drawing import (
    ClassStyle,
    contact_sheet,
    draw_prediction,
    fit_to_sheet,
    make_preview,
)
from cpvt_backbones.toolboxes import dicts_of, find_toolbox

from .matching import match

COUNT = 20  # images
SCORE_THR = 0.3  # of boxes, as infer draws them
QUALITY = 90  # of the JPEG file


@dataclass(frozen=True)
class ScoredImage:
    """An image with its score.

    Args:
        score: Score in [0, 1].
        path: Path of the image.
        about: The score in words.
        labels: The labels, as :func:`.draw_prediction` takes them.
        found: The prediction, as :func:`.draw_prediction` takes it.
    """

    score: float
    path: str
    about: str
    labels: dict[str, Any]
    found: dict[str, Any]


def draw_worst(cfg: Config, file: str | PathLike[str], *, count: int = COUNT) -> None:
    """Make a config's test draw the images with the lowest scores; the config changes in place.

    For a detector, the score is the F1 score of boxes with scores of at least 0.3, at an IoU of at
    least 0.5: 2 * found / (objects + boxes). For a segmentor, it is the mean IoU of the classes in
    the label. For a classifier, it is the probability of the true class.

    Args:
        cfg: Config from :func:`read_config`, for :func:`.engine.launch.test`.
        file: The picture, a JPEG.
        count: Number of images.

    Raises:
        ValueError: The picture cannot be written there, or would become an image of the data.
    """
    _check_file(cfg, Path(file))
    hook = dict(type='WorstImagesHook', file=fspath(file), task=find_toolbox(cfg).task, count=count)
    cfg.custom_hooks = [*(cfg.get('custom_hooks') or []), hook]


def _check_file(cfg: Config, file: Path) -> None:
    """Refuse a picture that cannot be written, before a long test begins."""
    for loader in ('train_dataloader', 'val_dataloader', 'test_dataloader'):
        for part in dicts_of(cfg.get(loader) or {}):
            for folder in _listed_folders(part):
                if file.resolve().is_relative_to(folder.resolve()):
                    raise InputError(
                        f'worst: {str(file)!r} is in {str(folder)!r}, whose files are the images of'
                        f' {loader}: choose another folder'
                    )
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=file.parent):
            pass
        if file.is_dir():
            raise IsADirectoryError('it is a folder')
    except OSError as error:
        raise InputError(f'worst: {str(file)!r} cannot be written: {error}') from error


def _listed_folders(options: Mapping[str, Any]) -> Iterator[Path]:
    """List folders that a data set searches for images, because no file lists them."""
    root, prefix = options.get('data_root'), options.get('data_prefix')
    if not (root or prefix) or options.get('ann_file') or 'type' not in options:
        return
    parts = [*prefix.values()] if isinstance(prefix, Mapping) else [prefix or '']
    for part in parts:
        if isinstance(part, str):
            yield Path(root or '', part)


@HOOKS.register_module()
class WorstImagesHook(Hook):
    """Draws the images of a test with the lowest scores; see :func:`draw_worst`.

    Args:
        file: The picture.
        task: Task of the model; see :class:`.Predictor`.
        count: Number of images.

    Attributes:
        worst: The images with the lowest scores so far, the lowest first.
    """

    def __init__(self, *, file: str, task: str, count: int) -> None:
        self._file = Path(file)
        self._task = task
        self._count = count
        self.worst: list[ScoredImage] = []
        self._objects: dict[str, Any] = {}
        self._style = ClassStyle(task, None)
        self._read: Any = read_image

    def before_test(self, runner: Any) -> None:
        """Read the names of the classes, the objects, and the way in which images are read."""
        dataset = runner.test_dataloader.dataset
        meta = dataset.metainfo
        palette = meta.get('palette') if self._task == 'segmentation' else None
        self._style = ClassStyle(self._task, meta.get('classes'), palette or None)
        for part in parts_of(dataset):
            first = next(iter(part.pipeline.transforms), None)
            if isinstance(first, LoadRange):
                self._read = first.value_range.read
            if self._task == 'detection':
                self._objects |= dict(_objects_of(part))

    def after_test_iter(
        self, runner: Any, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        """Keep the worst images so far."""
        judges = dict(
            detection=self._judge_boxes,
            segmentation=self._judge_map,
            classification=self._judge_class,
        )
        for sample in outputs or ():
            path = sample.metainfo.get('img_path')
            if path is None:
                raise InputError('worst: the test pipeline packs no img_path', argument='worst')
            self.worst.append(judges[self._task](str(path), sample))
        self.worst = sorted(self.worst, key=lambda one: one.score)[: self._count]

    def after_test_epoch(self, runner: Any, metrics: Any = None) -> None:
        """Draw the worst images of all processes."""
        every = [one for part in all_gather_object(self.worst) for one in part]
        if not is_main_process() or not every:
            return
        try:
            self._write(every)
        except Exception as error:  # a failed picture must not lose the metrics
            reason = ' '.join(f'{type(error).__name__}: {error}'.split())
            runner.logger.warning(f'{self._file} was not written: {reason}')
            return
        runner.logger.info(
            f'images with the lowest scores, labels left, predictions right: {self._file}'
        )

    def _write(self, every: Sequence[ScoredImage]) -> None:
        worst = {one.path: one for one in sorted(every, key=lambda one: one.score)}
        pictures = [
            picture for one in [*worst.values()][: self._count] for picture in self._draw(one)
        ]
        with atomic_write(self._file) as stream:
            sheet = contact_sheet(pictures)
            sheet.save(stream, format='JPEG', quality=QUALITY, subsampling=0)

    def _draw(self, one: ScoredImage) -> Iterator[tuple[np.ndarray, str]]:
        """Yield two pictures: the labels and the prediction."""
        image = self._read(one.path)
        size = image.shape[1::-1]
        for shown, about in ((one.labels, Path(one.path).name), (one.found, one.about)):
            rgb = fit_to_sheet(make_preview(image))
            yield draw_prediction(rgb, shown, self._style, size), about

    def _names(self, labels: Sequence[int]) -> list[str | None]:
        names = self._style.classes
        return [names[label] if names else None for label in labels]

    def _judge_boxes(self, path: str, sample: Any) -> ScoredImage:
        instances = sample.pred_instances
        kept = instances[instances.scores >= SCORE_THR]
        boxes, scores = kept.bboxes.cpu().numpy(), kept.scores.cpu().numpy()
        labels = kept.labels.cpu().numpy()
        true = self._objects[path]
        matched = match(boxes, labels, true['boxes'], true['labels'])
        found = int((matched >= 0).sum())
        extra = int((~_in_any(boxes[matched < 0], true['ignored'])).sum())
        objects = len(true['labels'])
        total = objects + found + extra
        shown = dict(boxes=boxes.tolist(), scores=scores.tolist(), labels=labels.tolist())
        return ScoredImage(
            score=2 * found / total if total else 1.0,
            path=path,
            about=f'{found} of {objects} found, {extra} extra',
            labels=dict(
                boxes=true['boxes'],
                labels=true['labels'],
                classes=self._names(true['labels']),
            ),
            found=dict(shown, classes=self._names(labels)),
        )

    def _judge_map(self, path: str, sample: Any) -> ScoredImage:
        found = sample.pred_sem_seg.data.squeeze(0).cpu().numpy()
        true = sample.gt_sem_seg.data.squeeze(0).cpu().numpy()
        count = len(self._style.classes or ()) or int(found.max()) + 1
        labelled = true < count
        present = np.unique(true[labelled])
        ious = [_iou(found == one, true == one, labelled) for one in present]
        score = float(np.mean(ious)) if ious else 1.0
        dtype = np.dtype(np.uint8 if count <= 255 else np.uint16)
        true = np.where(labelled, true, no_class(dtype)).astype(dtype)
        return ScoredImage(
            score=score,
            path=path,
            about=f'mean IoU {score:.2f}',
            labels=dict(seg_map=true),
            found=dict(seg_map=found.astype(dtype)),
        )

    def _judge_class(self, path: str, sample: Any) -> ScoredImage:
        scores, true = sample.pred_score.cpu().numpy(), sample.gt_label.flatten().tolist()
        label = int(scores.argmax())
        score = float(scores[true].mean())
        (true_name,), (name,) = self._names(true[:1]), self._names([label])
        found: dict[str, Any] = {'label': label, 'class': name, 'score': float(scores[label])}
        return ScoredImage(
            score=score,
            path=path,
            about=f'true class: {score:.2f}',
            labels={'label': true[0], 'class': true_name},
            found=found,
        )


def _objects_of(dataset: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Return the objects of each image in a data set of mmdet, by its path."""
    for index in range(len(dataset)):
        info: Mapping[str, Any] = dataset.get_data_info(index)
        instances = info['instances']
        counted = [one for one in instances if not one.get('ignore_flag')]
        yield (
            str(info['img_path']),
            dict(
                boxes=[one['bbox'] for one in counted],
                labels=[one['bbox_label'] for one in counted],
                ignored=[one['bbox'] for one in instances if one.get('ignore_flag')],
            ),
        )


def _in_any(boxes: np.ndarray, regions: Sequence[Any]) -> np.ndarray:
    """Mark boxes whose centre lies in one of the regions."""
    centres = (boxes[:, None, :2] + boxes[:, None, 2:]) / 2
    corners = np.asarray(regions, float).reshape(-1, 4)
    inside = (centres >= corners[:, :2]) & (centres <= corners[:, 2:])
    return inside.all(axis=-1).any(axis=-1)


def _iou(found: np.ndarray, true: np.ndarray, labelled: np.ndarray) -> float:
    both, either = found & true, (found | true) & labelled
    return float(both.sum() / either.sum())
