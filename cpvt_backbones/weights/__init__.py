"""Trained models by name: shipped with the package, or published by others.

``index.json`` has both: model and hash of shipped weights, and config and address of published
models, which ``benchmarks/published_models.py`` writes. ``<name>.safetensors`` holds shipped
weights in fp16, and ``<name>.md`` their data with its terms, recipe and accuracy. This package
folder imports only the errors and ``plain``.
"""

import hashlib
import json
import re
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

from cpvt_backbones.errors import InputError
from cpvt_backbones.plain import did_you_mean

FOLDER = Path(__file__).parent
INDEX = FOLDER / 'index.json'
# The hash in file names of OpenMMLab, torchvision and tools/publish_checkpoint.py. Dates, and steps
# with leading zeros, also have eight digits.
_DATE = r'20\d\d(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01])'
_NAMED_HASH = re.compile(rf'.*-(?!(?:{_DATE}|00\d{{6}})$)([0-9a-f]{{64}}|[0-9a-f]{{8}})')


@dataclass(frozen=True)
class ShippedWeights:
    """Weights shipped with the package.

    Attributes:
        name: Name for users, such as ``'cpvt_tiny_gap-imagenette'``.
        about: One line that describes the model.
        backbone: Type and arguments of the backbone.
        config: Config of the whole model, relative to the root of the repository, or to the folder
            ``.mim`` of an installed package.
        sha256: SHA-256 of the file, in hexadecimal.
        dataset_meta: ``classes`` and ``palette`` of the training data.
        sizes: Arguments of :class:`GoodSizes`, the image sizes at which the model is good; ``None``
            if not measured.
        mean: Mean of each channel of its images, RGB, 0 to 255; ``None`` if unknown.
        std: Standard deviation of each channel, in the same scale.
    """

    name: str
    about: str
    backbone: dict[str, Any]
    config: str
    sha256: str
    dataset_meta: dict[str, Any] = field(default_factory=dict)
    sizes: dict[str, Any] | None = None
    mean: list[float] | None = None
    std: list[float] | None = None

    @property
    def config_file(self) -> Path:
        """The config file in an installed package or in the repository."""
        return repository_file(self.config)

    @property
    def file(self) -> Path:
        """The file with the weights, whose SHA-256 is checked.

        Raises:
            FileNotFoundError: The file is missing.
            ValueError: The file is damaged.
        """
        path = FOLDER / f'{self.name}.safetensors'
        if not path.is_file():
            raise FileNotFoundError(
                f'{self.name!r}: {str(path)!r} is missing; install the package again'
            )
        if (digest := sha256_of(path)) != self.sha256:
            fault = f'is damaged (SHA-256 {digest[:12]}..., not {self.sha256[:12]}...)'
            raise InputError(f'{self.name!r}: {str(path)!r} {fault}; install the package again')
        return path


@dataclass(frozen=True)
class PublishedWeights:
    """A whole model trained and published by others, for a config of this package.

    The first use downloads it. Its outputs are those of the publisher's model. Its scores are the
    publisher's and were not measured here.

    Attributes:
        name: Name for users, such as ``'retinanet_pvt_small-coco'``.
        about: One line that describes the model.
        task: ``'detection'``, ``'panoptic'``, ``'segmentation'`` or ``'classification'``.
        dataset: Its training data, ``'COCO'``, ``'ADE20K'``, ``'Cityscapes'`` or ``'ImageNet-1k'``.
        config: Config of the whole model, as in :class:`ShippedWeights`.
        address: Address of the file, or a name with ``timm://``. Most file names contain a SHA-256,
            or its first eight digits, which is compared.
        scores: The publisher's score by metric, in percent.
        source: Where the address and the scores are published.
        license: Licence of the weights.
        parameters: Number of parameters.
        gmacs: Multiplications and additions at ``size``, in 10^9; ``None`` if not counted.
        size: (height, width) in px of ``gmacs``.
        mean: See :class:`ShippedWeights`.
        std: See :class:`ShippedWeights`.
    """

    name: str
    about: str
    task: str
    dataset: str
    config: str
    address: str
    scores: dict[str, float]
    source: str
    license: str
    parameters: int
    gmacs: float | None = None
    size: list[int] | None = None
    mean: list[float] | None = None
    std: list[float] | None = None

    @property
    def config_file(self) -> Path:
        """The config file in an installed package or in the repository."""
        return repository_file(self.config)


def sha256_of(path: str | PathLike[str]) -> str:
    """Compute the SHA-256 of a file, in hexadecimal."""
    digest = hashlib.sha256()
    with open(path, 'rb') as file:
        while part := file.read(1 << 20):
            digest.update(part)
    return digest.hexdigest()


def hash_in_name(stem: str) -> str:
    """Find a SHA-256 in a file name without suffix: 64 or 8 hexadecimal digits after a hyphen.

    Returns:
        The digits, or ``''``. Dates of this century (``20260731``) and numbers with two leading
        zeros (``00012000``) do not count.
    """
    match = _NAMED_HASH.fullmatch(stem)
    return match[1] if match else ''


def repository_file(name: str) -> Path:
    """Return a file such as ``configs/...`` in an installed package or in a clone."""
    installed = FOLDER.parent / '.mim' / name
    return installed if installed.is_file() else FOLDER.parents[1] / name


def shipped_weights() -> dict[str, ShippedWeights]:
    """Return all shipped weights by name.

    Examples:
        >>> from cpvt_backbones.weights import shipped_weights
        >>> for name, entry in shipped_weights().items():
        ...     print(name, entry.backbone['type'])
        cpvt_tiny_gap-imagenette CPVT
        retinanet_cpvt_tiny_gap-bccd MultiScaleCPVT
        semantic_fpn_cpvt_tiny_gap-camvid MultiScaleCPVT
    """
    models = named_models()
    return {k: v for k, v in models.items() if isinstance(v, ShippedWeights)}


def published_weights() -> dict[str, PublishedWeights]:
    """Return all published models by name.

    Examples:
        >>> from cpvt_backbones.weights import published_weights
        >>> entry = published_weights()['retinanet_pvt_small-coco']
        >>> entry.scores, entry.source
        ({'box AP': 40.4}, 'mmdet, configs/pvt/metafile.yml')
    """
    models = named_models()
    return {k: v for k, v in models.items() if isinstance(v, PublishedWeights)}


def named_models() -> dict[str, ShippedWeights | PublishedWeights]:
    """Return shipped weights and then published models, by name."""
    index = json.loads(INDEX.read_text(encoding='utf-8')) if INDEX.is_file() else {}
    shipped: dict[str, ShippedWeights | PublishedWeights] = {}
    published: dict[str, ShippedWeights | PublishedWeights] = {}
    for name, entry in sorted(index.items()):
        if 'address' in entry:
            published[name] = PublishedWeights(name=name, **entry)
        else:
            shipped[name] = ShippedWeights(name=name, **entry)
    return shipped | published


def similar_names(name: str) -> str:
    """Return ``'; did you mean NAME?'`` for messages; ``''`` if no model has a similar name."""
    return did_you_mean(name, named_models(), cutoff=0.8)


def find_shipped(name: str) -> ShippedWeights:
    """Return shipped weights by name.

    Raises:
        ValueError: No shipped weights have this name.

    Examples:
        >>> from cpvt_backbones.weights import find_shipped
        >>> shipped = find_shipped('cpvt_tiny_gap-imagenette')
        >>> shipped.backbone['type'], shipped.backbone['arch']
        ('CPVT', 'tiny')
        >>> shipped.dataset_meta['classes'][:2]
        ['tench', 'English springer']
    """
    known = shipped_weights()
    if name not in known:
        raise InputError(
            f'name must be one of the weights that come with the package, {list(known)}, got'
            f' {name!r}{similar_names(str(name))}'
        )
    return known[name]
