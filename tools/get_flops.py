"""Parameters and multiply-adds of a config's model, at any image size.

python tools/get_flops.py configs/retinanet/retinanet_pyramid-cpvt-s_fpn_1x_coco.py --shape 800 600
"""

import argparse

from _common import add_config_arguments, config_from

from cpvt_backbones.analysis.complexity import measure_complexity


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('config', help='config file')
    parser.add_argument(
        '--shape',
        type=int,
        nargs='+',
        default=[224],
        metavar='PIXELS',
        help='a side, or height and width (default: 224)',
    )
    add_config_arguments(parser)
    args = parser.parse_args()
    if len(args.shape) > 2 or min(args.shape) < 1:
        parser.error(f'--shape must be a side, or height and width, in pixels, got {args.shape}')
    height, width = args.shape[0], args.shape[-1]
    found = measure_complexity(config_from(parser, args), height=height, width=width)
    plain = found.gmacs - found.attention_gmacs
    print(f'image       {height} x {width} px')
    print(f'parameters  {found.parameters / 1e6:.2f} M')
    print(f'layers      {plain:.2f} G multiply-adds (what papers and OpenMMLab call FLOPs)')
    print(f'attention   {found.attention_gmacs:.2f} G more, queries by keys and weights by values')


if __name__ == '__main__':
    main()
