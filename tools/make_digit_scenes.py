"""Write sets of digit scenes (see cpvt_backbones/datasets/digit_scenes.py); a set that is there already is kept.

python tools/make_digit_scenes.py                        # what the demo configs train and test on
python tools/make_digit_scenes.py --heldout 1024x640:8   # one more size
"""

import argparse
import re
from pathlib import Path

from cpvt_backbones.datasets.digit_scenes import write_scenes

TRAIN = '128x128:4000'
HELDOUT = ('128x128:300',)


def parse_set(text: str) -> dict[str, int]:
    """``'1024x640:8'`` to width, height and count."""
    match = re.fullmatch(r'(\d+)x(\d+):(\d+)', text)
    if not match:
        raise argparse.ArgumentTypeError(f'{text!r}: WIDTHxHEIGHT:COUNT is accepted, for example 1024x640:8')
    width, height, count = map(int, match.groups())
    return dict(width=width, height=height, count=count)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__.split('\n')[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    form = dict(type=parse_set, nargs='*', metavar='WIDTHxHEIGHT:COUNT')
    parser.add_argument('--root', type=Path, default=Path('data/digit_scenes'), help='folder that holds the sets')
    parser.add_argument('--train', default=[parse_set(TRAIN)], help='sets of training scenes', **form)
    parser.add_argument('--heldout', default=[parse_set(text) for text in HELDOUT], help='held-out sets', **form)
    parser.add_argument('--seed', type=int, default=0)
    args = parser.parse_args()
    for split in ('train', 'heldout'):
        for size in getattr(args, split):
            print(write_scenes(root=args.root, split=split, seed=args.seed, **size))


if __name__ == '__main__':
    main()
