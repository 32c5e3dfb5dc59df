"""Steps from a user's data to a config: read, check, decide, write."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cpvt_backbones.checkpoints import Normalisation
from cpvt_backbones.errors import InputError
from cpvt_backbones.images.value_range import ValueRange
from cpvt_backbones.images.windows import open_scene
from cpvt_backbones.inference.drawing import can_draw
from cpvt_backbones.toolboxes import read_config
from cpvt_backbones.weights import shipped_weights

from .check.checks import check
from .check.masks import MaskClasses, find_classes
from .dataset import Crowd, Report, Split
from .decide.settings import (
    ClassMaps,
    Settings,
    Start,
    class_settings,
    map_settings,
    object_settings,
    start_elsewhere,
    start_from,
)
from .decide.weights import (
    Pretrained,
    Published,
    WholeModel,
    find_published,
    read_backbone,
    read_model,
    why_not_whole,
)
from .read.coco import note_unlisted, read_coco, read_predictions, report_left_out
from .read.files import any_size, choose_range, mean_and_std
from .read.folders import read_folders
from .read.instances import read_instances
from .read.masks import MaskedImages, read_map, read_masks
from .read.recognise import Form
from .read.voc import read_voc
from .read.yolo import read_yolo
from .write.config import (
    REPORT,
    Draft,
    anchors_to_keep,
    check_out,
    replacing,
    values_of,
    write_config,
)
from .write.data import (
    MAPS,
    write_class_maps,
    write_labels,
    write_map_lists,
    write_objects,
    write_report,
    write_sheet,
)

SHOWN = 10  # classes
SHEET = 'sheet.jpg'
GOES_ON = (
    'the training goes on with the whole model of the weights: classes of the same name keep what'
    ' they learned, and the anchors stay'
)
SMALL = (
    'the detector is a small RetinaNet for CPUs, with an FPN of 64 channels;'
    ' --weights retinanet_pvtv2_b0-coco takes a whole COCO model instead'
)
# The task of each format.
TASKS = dict(
    coco='detector',
    voc='detector',
    yolo='detector',
    instances='instance segmentor',
    masks='segmentor',
    folders='classifier',
)


@dataclass(frozen=True, kw_only=True)
class Request:
    """Options of :func:`make_config`.

    Args:
        kind: Format of the data, a key of ``TASKS``.
        form: Format of the files; for instances, one of several.
        out: The config, FILE.py.
        classes: File with the names of the classes.
        ignore: Values of masks to leave out.
        crowd: Meaning of annotations with ``iscrowd``, ``'ignore'`` or ``'objects'``; see
            :func:`check`.
        limits: Values that become 0 and 255, for images of more than 8 bits.
        bands: Bands of the files, counted from 1, that become the channels of the model.
        added: Output folder of a prediction whose objects are added to the training.
        weights: Name of a published model of the task, or the checkpoint of a training from it, to
            be used as a whole; file or name of weights for the backbone; ``'none'``; or ``None``
            for shipped weights.
        length: Iterations, or epochs of a classifier; ``None`` chooses by the data.
        side: Longer side of training images in px; ``None`` chooses by the data.
        decode: Decode every image; otherwise only headers are read.
        strict: Refuse data of which anything is skipped or altered.
        skip_damaged: Leave out images that cannot be read, with their labels.
    """

    kind: str
    form: Form
    out: Path
    classes: Path | None = None
    ignore: Sequence[int] = ()
    crowd: Crowd | None = None
    limits: Sequence[float] | None = None
    bands: Sequence[int] | None = None
    added: Path | None = None
    weights: str | None = None
    length: int | None = None
    side: int | None = None
    decode: bool = True
    strict: bool = False
    skip_damaged: bool = False

    @property
    def task(self) -> str:
        """Kind of model, such as ``'detector'``."""
        return TASKS[self.kind]

    @property
    def folder(self) -> Path:
        """Folder for everything but the config."""
        return self.out.with_suffix('')


@dataclass(frozen=True)
class Labels:
    """Data as read: the splits, and a segmentor's masks with their classes."""

    splits: Sequence[Split]
    masks: MaskedImages | None = None
    values: MaskClasses | None = None


def make_config(request: Request) -> Settings:
    """Read and check data, and write them with a config; return the settings.

    Raises:
        InputError: The data, weights or name of the config are not accepted.
    """
    given = [*request.form.data, *request.form.val, request.classes, request.added]
    check_out(request.out, [path for path in given if path is not None])
    channels = len(request.bands or 'RGB')
    published = pretrained = None
    weights = request.weights
    if weights is not None and weights not in ('none', *shipped_weights()):
        published = find_published(request.task, weights) if channels == 3 else None
        if published is None:
            pretrained = read_backbone(request.task, weights, in_channels=channels)
    with any_size():
        checked = _read_and_check(request)
        with replacing(request.out) as draft:
            prepared = _prepare(request, checked, pretrained, draft)
            _write(request, checked, prepared, pretrained, published, draft)
    print(f'data accepted{checked.table}')
    return prepared.settings


@dataclass(frozen=True)
class Checked:
    """Accepted data, the conversion of their values, and a text about the table's file."""

    labels: Labels
    splits: Sequence[Split]
    value_range: ValueRange | None
    table: str


@dataclass(frozen=True)
class Prepared:
    """Settings, names and paths, and mean and standard deviation of the images."""

    settings: Settings
    texts: dict[str, object]
    normalisation: Normalisation | None


def _read_and_check(request: Request) -> Checked:
    """Read and check the data, and print the table; ``InputError`` if any are refused."""
    report = Report()
    labels = read(request, report)
    value_range = None
    if request.limits or request.bands:
        value_range = choose_range(labels.splits[0], request.limits, request.bands)
    splits = check(
        labels.splits,
        report,
        decode=request.decode,
        outlines=request.kind == 'instances',
        added=read_predictions(request.added) if request.added else None,
        value_range=value_range,
        skip_damaged=request.skip_damaged,
        # VOC's reader reports that difficult objects are ignored.
        crowd='ignore' if request.form.kind == 'voc' else request.crowd,
    )
    table = write_report(report, request.folder / REPORT)
    report.finish(strict=request.strict, table=table)
    return Checked(labels, splits, value_range, table)


def _write(
    request: Request,
    checked: Checked,
    prepared: Prepared,
    pretrained: Pretrained | None,
    published: Published | None,
    draft: Draft,
) -> None:
    """Write the config, and add its start weights to the settings."""
    settings = prepared.settings
    whole = None
    if published is not None:
        whole = read_model(published, settings.classes)
    fields = dict(settings.fields)
    begin = start_from(
        request.task,
        request.weights,
        scale=fields['scale'],
        channels=len(request.bands or 'RGB'),
        pretrained=pretrained,
        published=whole,
    )
    settings.remarks += _about_start(begin, pretrained or whole)
    anchors = None if published is None else published.anchors
    if anchors is not None:
        fields |= anchors
    elif whole is not None and request.task == 'detector':
        fields['ratios'] = whole.ratios

    def write(begin: Start) -> None:
        values = values_of(
            request.task,
            prepared.texts,
            fields,
            begin,
            value_range=checked.value_range,
            normalisation=prepared.normalisation,
        )
        write_config(request.task, values, draft.config, about=settings.about, whole=whole)

    write(begin)
    fault = '' if anchors is not None else 'the config has another model'
    kept = anchors_to_keep(request.task, pretrained, draft.config)
    if kept is not None and pretrained is not None:
        own = fields
        fields = own | kept
        file = pretrained.arguments['init_cfg']
        write(start_elsewhere(request.task, pretrained, load_from=file))
        fault = why_not_whole(str(file), read_config(draft.config))
        if fault:
            fields = own
            write(begin)
    is_small = request.task == 'detector' and whole is None and fault
    settings.remarks += [SMALL] if is_small else []
    if not fault:
        settings.remarks.append(GOES_ON)
    elif pretrained is not None and pretrained.rest:
        settings.remarks.append(f'not loaded from the weights: {pretrained.rest} ({fault})')


def _about_start(begin: Start, weights: Pretrained | WholeModel | None) -> list[str]:
    """Name the weights from which a training starts, and their licence."""
    if weights is not None:
        return [f'starts from {weights.remark}', f'note: {weights.licence}']
    named = [begin.load_from, begin.model.get('backbone', {}).get('init_cfg')]
    shipped = [name for name in shipped_weights() if name in named]
    if not shipped:
        return []
    return [
        f'starts from {shipped[0]}; others: --weights timm://twins_pcpvt_small.in1k and more names'
        ' (docs/weights.md)',
        'note: these weights, and models trained from them, are for non-commercial use'
        ' (docs/own_data.md#may-i-publish-the-model-or-use-it-commercially)',
    ]


def _prepare(
    request: Request, checked: Checked, pretrained: Pretrained | None, draft: Draft
) -> Prepared:
    """Choose the settings of checked data, and write these to the folder of a draft."""
    value_range = checked.value_range
    settings, texts = _decide_and_write(request, checked, draft.folder)
    normalisation = None
    if value_range and request.bands:
        mean, std = mean_and_std(checked.splits[0], value_range)
        normalisation = Normalisation(tuple(mean), tuple(std))
        settings.remarks.append(
            f'bands {", ".join(map(str, request.bands))}: mean and standard deviation are those of'
            ' the training images'
        )
    elif pretrained is not None:
        normalisation = pretrained.normalisation
        settings.remarks.append(_about_normalisation(normalisation))
    if request.length:
        settings.fields['length'] = request.length
    try:
        write_sheet(request.task, texts, draft.folder / SHEET, value_range=value_range)
        remark = f'images with their labels, to look at before training: {request.folder / SHEET}'
    except OSError as error:  # a failed picture must not end the command
        remark = f'images with their labels were not drawn: {error}'
    settings.remarks.append(remark)
    numbered = [f'{i} {name}' for i, name in enumerate(settings.classes) if not can_draw(name)]
    if numbered:
        more = ', ...' if len(numbered) > SHOWN else ''
        settings.remarks.append(
            'pictures show these classes by their number, because their font lacks the letters:'
            f' {", ".join(numbered[:SHOWN])}{more}'
        )
    return Prepared(settings, draft.final(texts), normalisation)


def _about_normalisation(found: Normalisation | None) -> str:
    if found is None:
        return (
            "mean and deviation of the weights' images are not known: the config has ImageNet's;"
            ' change data_preprocessor if they were trained with others'
        )
    return f'images get {found}, as in the training of the weights ({found.source})'


def read(request: Request, report: Report) -> Labels:
    """Read labels in the format of the request, without checks."""
    form = request.form
    if request.task == 'classifier':
        return Labels([read_folders(form.data[0], report)])
    if request.task == 'segmentor':
        masks = read_masks(form.data[0], form.data[1], report, classes=request.classes)
        values = find_classes(masks, ignore=request.ignore)
        report.extend(values.findings)
        report.classes += values.shares
        return Labels([masks.split], masks, values)
    return Labels(_read_objects(request, report))


def _read_objects(request: Request, report: Report) -> list[Split]:
    form = request.form
    if form.kind == 'coco':
        file, root = form.data
        splits = [read_coco(file, root, report)]
        if form.val:
            images = form.val[-1] if len(form.val) > 1 else root
            splits.append(read_coco(form.val[0], images, report))
        note_unlisted(splits, report)
        report_left_out(form.left_out, report)
        return splits
    if form.kind == 'yolo':
        return read_yolo(form.data[0], report)
    if form.kind == 'voc' and request.kind == 'voc':
        return read_voc(form.data[0], report)
    if form.kind == 'masks':
        return [read_instances(form.data[0], form.data[1], report, classes=request.classes)]
    raise InputError(
        'data: the format instances takes COCO JSON with outlines, YOLO polygons, or images and'
        f' masks, got {form.kind}'
    )


def _decide_and_write(
    request: Request, checked: Checked, folder: Path
) -> tuple[Settings, dict[str, object]]:
    labels, splits, value_range = checked.labels, checked.splits, checked.value_range
    suffix = '.npy' if value_range else '.jpg'
    if request.task == 'classifier':
        settings = class_settings(splits, side=request.side)
        return settings, write_labels(settings, folder)
    if labels.masks is None or labels.values is None:
        settings = object_settings(request.task, splits, suffix=suffix, side=request.side)
        return settings, write_objects(settings, folder, value_range=value_range)
    target = folder / MAPS
    counts, missing = write_class_maps(
        labels.masks, labels.values, splits, target, value_range=value_range
    )

    def read_written(name: str) -> np.ndarray:
        return read_map(target / f'{name}.png')

    first = open_scene(splits[0].root / splits[0].coco['images'][0]['file_name'], value_range)
    maps = ClassMaps(
        classes=labels.values.names,
        counts=counts,
        read=read_written,
        missing=missing,
        georeferenced=first is not None and first.is_georeferenced,
    )
    settings = map_settings(splits, maps, suffix=suffix, side=request.side)
    return settings, write_map_lists(settings, folder, value_range=value_range)
