"""Run a trained detector, segmentor or classifier on images of any size.

python tools/infer.py photo.jpg photos/ CONFIG CHECKPOINT
Writes DIR/predictions.json, DIR/vis/<name>.png, and for segmentation DIR/pred/<name>.png (index maps).
"""

import argparse
import json
import re
from pathlib import Path

from _common import add_config_arguments, config_from
from PIL import Image
from rich.progress import track

from cpvt_backbones.inference.inferencer import Inferencer, find_images


def parse_scale(text: str) -> tuple[int, int] | str | None:
    """``'native'``, ``'config'`` or ``'1333x800'`` to what :class:`Inferencer` takes."""
    if text in ('native', 'config'):
        return None if text == 'native' else text
    match = re.fullmatch(r'([1-9]\d*)x([1-9]\d*)', text)
    if not match:
        raise argparse.ArgumentTypeError(f'{text!r}: native, config or WIDTHxHEIGHT is accepted')
    return int(match[1]), int(match[2])


def unique_names(images: list[Path]) -> list[str]:
    """A PNG name for each image: its own, numbered where another image (of another folder or format) had it."""
    # A dict keeps the order, and finds a name at once among thousands.
    names: dict[str, None] = {}
    for path in images:
        number, name = 1, f'{path.stem}.png'
        while name in names:
            number += 1
            name = f'{path.stem}_{number}.png'
        names[name] = None
    return list(names)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('inputs', nargs='+', help='image files and folders of images')
    parser.add_argument('config', help='config file of the model')
    parser.add_argument('checkpoint', help='checkpoint file')
    parser.add_argument('--out-dir', type=Path, default=Path('outputs'), help='default: %(default)s')
    parser.add_argument('--device', help='cpu, cuda:1, ... (default: a GPU if there is one)')
    parser.add_argument('--score-threshold', type=float, default=0.3, help='for boxes; default: %(default)s')
    parser.add_argument(
        '--scale',
        type=parse_scale,
        default='native',
        metavar='native|config|WIDTHxHEIGHT',
        help="native (default): the image's own size; config: as in the config's test pipeline; "
        '1333x800: as large as fits in there',
    )
    add_config_arguments(parser)
    args = parser.parse_args()
    cfg = config_from(parser, args)
    try:
        images = list(find_images(args.inputs))
        inferencer = Inferencer(cfg=cfg, checkpoint=args.checkpoint, device=args.device, scale=args.scale)
    except FileNotFoundError as error:
        parser.error(str(error))
    (args.out_dir / 'vis').mkdir(parents=True, exist_ok=True)
    predictions = {}
    for path, name in zip(track(images, description='Images'), unique_names(images), strict=True):
        prediction, drawing = inferencer(path, score_threshold=args.score_threshold, draw=True)
        Image.fromarray(drawing).save(args.out_dir / 'vis' / name)
        if 'index_map' in prediction:
            (args.out_dir / 'pred').mkdir(exist_ok=True)
            Image.fromarray(prediction['index_map']).save(args.out_dir / 'pred' / name)
            prediction['index_map'] = f'pred/{name}'
        predictions[str(path)] = prediction
    (args.out_dir / 'predictions.json').write_text(json.dumps(predictions, indent=1))
    print(f'{len(images)} images: {args.out_dir}/predictions.json, pictures in {args.out_dir}/vis')


if __name__ == '__main__':
    main()
