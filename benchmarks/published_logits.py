"""Ten logits of published models beside those of their publishers' code, or beside stored ones.

python benchmarks/published_logits.py eomt_small-coco_panoptic --eomt CLONE

Each NAME is that of a published model, as in docs/models.md. Its file is downloaded, and a fixed
image, made by a formula, goes through the model here and through the publisher's: that of mmdet,
mmseg, mmpretrain, timm or transformers, if it is installed. --eomt, --pvt and --projects take a
clone of tue-mps/eomt, whai362/PVT (its folder "classification") and open-mmlab/mmdetection (its
folder "projects"). Their code runs.

The logits of published_logits.csv are compared, too. Those of a photograph were published by
others. --store adds the logits of the publisher's code to this file, with the SHA-256 of the
weights: later runs need no such code.

Exit code 0 is agreement, 1 a difference.
"""

import csv
import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import packages_distributions, version
from importlib.util import find_spec
from pathlib import Path
from urllib.error import URLError

import torch
from mmengine.config import Config
from torch import Tensor, nn

# For `benchmarks`, where this file runs as a script.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import published
from cpvt import command_line as cli
from cpvt_backbones.checkpoints import load_weights, locate_checkpoint
from cpvt_backbones.errors import InputError
from cpvt_backbones.images import read_image
from cpvt_backbones.toolboxes import read_config
from cpvt_backbones.weights import (
    PublishedWeights,
    published_weights,
    sha256_of,
    similar_names,
)

STORED = Path(__file__).with_suffix('.csv')
FORMULA = 'formula'  # the image of `waves`; other images are addresses
TOLERANCE = 1e-4
"""Accepted difference, as a share of an output's largest value. Another order of summation in
float32 stays below: with random weights, all published models differ by at most 1e-5.
"""
COUNT = 10
Place = tuple[int, int]
"""Index of an output, and index of a value in it."""


@dataclass(frozen=True)
class Stored:
    """Ten logits of a published model by other code than this package's."""

    name: str
    image: str  # FORMULA, or the address of a picture
    source: str  # package and version, or file, that the logits are from
    sha256: str  # of the weights; '' if it is not known
    tolerance: float
    places: tuple[Place, ...]
    logits: tuple[float, ...]

    @classmethod
    def of_row(cls, row: dict[str, str]) -> 'Stored':
        """Read a row of the CSV file."""
        pairs = (place.split(':') for place in row['places'].split())
        return cls(
            name=row['name'],
            image=row['image'],
            source=row['source'],
            sha256=row['sha256'],
            tolerance=float(row['tolerance']),
            places=tuple((int(output), int(index)) for output, index in pairs),
            logits=tuple(map(float, row['logits'].split())),
        )

    @property
    def row(self) -> dict[str, str]:
        """The row of the CSV file."""
        return dict(
            name=self.name,
            image=self.image,
            source=self.source,
            sha256=self.sha256,
            tolerance=f'{self.tolerance:g}',
            places=' '.join(f'{output}:{index}' for output, index in self.places),
            logits=' '.join(f'{value:.9g}' for value in self.logits),
        )


def read_stored(file: Path) -> list[Stored]:
    """Rows of the CSV file; none if it does not exist."""
    if not file.is_file():
        return []
    with file.open(encoding='utf-8', newline='') as stream:
        return [Stored.of_row(row) for row in csv.DictReader(stream)]


def write_stored(file: Path, new: Stored) -> None:
    """Write a row in place of the row of the same model and image."""
    rows = [one for one in read_stored(file) if (one.name, one.image) != (new.name, new.image)]
    rows = sorted([*rows, new], key=lambda one: (one.name, one.image))
    with file.open('w', encoding='utf-8', newline='') as stream:
        writer = csv.DictWriter(stream, [*new.row], lineterminator='\n')
        writer.writeheader()
        writer.writerows(one.row for one in rows)


def waves(height: int, width: int) -> Tensor:
    """A normalised image (1, 3, height, width): products of waves of several lengths."""
    rows = torch.arange(height, dtype=torch.float64)[:, None]
    columns = torch.arange(width, dtype=torch.float64)
    channels = [
        torch.sin(rows / (9 + 4 * k)) * torch.cos(columns / (13 - 3 * k)) + torch.sin(columns / 50)
        for k in range(3)
    ]
    return torch.stack(channels)[None].float()


def picture(address: str, cfg: Config) -> Tensor:
    """The picture of an address, at the top left of the black square of an EoMT, normalised."""
    file = Path(torch.hub.get_dir(), 'pictures', address.rpartition('/')[2])
    file.parent.mkdir(parents=True, exist_ok=True)
    if not file.is_file():
        try:
            torch.hub.download_url_to_file(address, str(file), progress=False)
        except (URLError, OSError) as error:
            raise InputError(
                f'{address} could not be fetched ({error}); without a network, put the picture at'
                f' {str(file)!r}'
            ) from error
    rgb = torch.from_numpy(read_image(file)[..., ::-1].copy()).permute(2, 0, 1)
    side = cfg.model.test_cfg.square
    square = torch.zeros(3, side, side)
    square[:, : rgb.shape[1], : rgb.shape[2]] = rgb
    mean, std = (torch.tensor(cfg.model.data_preprocessor[key]) for key in ('mean', 'std'))
    return ((square - mean[:, None, None]) / std[:, None, None])[None]


def places_in(outputs: Sequence[Tensor]) -> tuple[Place, ...]:
    """Ten places, spread over all outputs and over the values of each."""
    chosen = [round(k * (len(outputs) - 1) / (COUNT - 1)) for k in range(COUNT)]
    places = []
    for k, output in enumerate(chosen):
        parts = chosen.count(output)  # the middle of each part of the output
        middle = (2 * chosen[:k].count(output) + 1) * outputs[output].numel() // (2 * parts)
        places.append((output, middle))
    return tuple(places)


def values_at(outputs: Sequence[Tensor], places: Sequence[Place]) -> list[float]:
    """The values of outputs at places."""
    return [float(outputs[output].flatten()[index]) for output, index in places]


@dataclass(frozen=True)
class Model:
    """A published model with its downloaded weights."""

    path: Path
    file: Path
    cfg: Config
    ours: nn.Module

    @classmethod
    def fetch(cls, entry: PublishedWeights) -> 'Model':
        """Download the weights, and load them."""
        file = locate_checkpoint(entry.name)
        cfg = read_config(entry.config_file)
        ours = published.build(cfg)
        load_weights(ours, entry.name)
        return cls(entry.config_file, file, cfg, ours)

    def peer(self, args: Namespace) -> tuple[nn.Module | None, str]:
        """The publisher's model with the same file, and its package; ``None``, and why, without."""
        folder, option = None, published.CLONES.get(published.clone_of(self.path))
        if option:
            folder, about = getattr(args, option), "its authors' code"
            if folder is None:
                return None, f'--{option} is not given'
        else:
            package = dict(timm='timm', dinov2='transformers').get(self.path.parent.name)
            package = package or published.toolbox_config(self.path)[0]
            if find_spec(package) is None:
                return None, f'{package} is not installed'
            about = f'{package} {version(packages_distributions()[package][0])}'
        depth = len(getattr(self.ours.backbone, 'blocks', ())) or None
        return published.peer_with_weights(self.path, self.file, folder, depth=depth), about

    def image(self, name: str) -> Tensor:
        """The image of a stored row."""
        if name == FORMULA:
            return waves(*published.sizes_of(self.path, self.cfg)[0])
        return picture(name, self.cfg)


def compare(name: str, args: Namespace) -> bool:
    """Print the logits of a model beside others; returns whether all agree."""
    model = Model.fetch(find(name))
    digest = sha256_of(model.file)
    print(f'{name}: {model.file.name}, SHA-256 {digest}')
    agree = []
    peer, about = model.peer(args)
    if peer is not None:
        image = model.image(FORMULA)
        ours = published.outputs(model.ours, image)
        theirs = published.peer_outputs(peer, image, model.cfg)
        places = places_in(ours)
        logits = tuple(values_at(theirs, places))
        new = Stored(name, FORMULA, about, digest, TOLERANCE, places, logits)
        worst = published.difference(ours, theirs)
        agree += [report(ours, new), worst <= TOLERANCE]
        print(f'  all logits differ by at most {worst:.1e}')
        if args.store:
            write_stored(args.stored, new)
    elif args.store:
        raise InputError(f"store: {name!r} needs the publisher's code: {about}")
    for stored in read_stored(args.stored):
        if stored.name == name:
            agree.append(report(published.outputs(model.ours, model.image(stored.image)), stored))
            if stored.sha256 not in ('', digest):
                print(f'  they are of another file, SHA-256 {stored.sha256}')
    if not agree:
        raise InputError(f'{name!r} has nothing to compare with: {about}, and no logits are stored')
    return all(agree)


def report(ours: Sequence[Tensor], other: Stored) -> bool:
    """Print ten logits beside others; returns whether they agree."""
    found = values_at(ours, other.places)
    scales = [float(ours[output].abs().max()) for output, _ in other.places]
    shares = [
        abs(one - right) / scale
        for one, right, scale in zip(found, other.logits, scales, strict=True)
    ]
    print(f'{"output":>8}{"index":>10}{"here":>14}{other.source:>34}')
    for (output, index), one, right in zip(other.places, found, other.logits, strict=True):
        print(f'{output:>8}{index:>10}{one:>14.6g}{right:>34.6g}')
    agrees = all(share <= other.tolerance for share in shares)  # false for NaN
    verdict = 'agree' if agrees else 'DIFFER'
    of = f'{max(shares):.1e} of the largest logit, tolerance {other.tolerance:g}'
    print(f'  they {verdict}: {of}; image: {other.image}')
    return agrees


def find(name: str) -> PublishedWeights:
    """The published model of a name."""
    known = published_weights()
    if name not in known:
        raise InputError(f'NAME: {name!r} is not a published model{similar_names(name)}')
    return known[name]


def main(argv: Sequence[str] | None = None) -> None:
    parser = cli.make_parser(__doc__)
    parser.add_argument('names', nargs='+', metavar='NAME', help='name of a published model')
    for option in published.CLONES.values():
        parser.add_argument(f'--{option}', type=Path, metavar='FOLDER', help='clone, see above')
    parser.add_argument('--store', action='store_true', help="store the publisher's logits")
    parser.add_argument('--stored', type=Path, default=STORED, metavar='FILE.csv')
    args = parser.parse_args(argv)
    if args.projects:
        sys.path.insert(0, str(args.projects.resolve().parent))
    if not all([compare(name, args) for name in args.names]):
        sys.exit(1)


if __name__ == '__main__':
    cli.run(main)
