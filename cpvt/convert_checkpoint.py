"""Convert a checkpoint to the names of this package, timm, mmseg or mmpretrain.

    cpvt convert-checkpoint twins.pth pcpvt-small.pth \\
        --type PyramidCPVT --arch small
    cpvt convert-checkpoint deit.safetensors cpvt-tiny.pth \\
        --type CPVT --arch tiny
    cpvt convert-checkpoint work_dirs/retinanet timm.safetensors \\
        --config CONFIG --to timm

Nothing is written if a part of the trunk is missing.
"""

import argparse
from collections.abc import Sequence

from cpvt import command_line as cli
from cpvt.command_line import plain


def backbone_arguments(args: argparse.Namespace) -> dict:
    """Return type and arguments of the backbone that the command line describes."""
    from mmengine.config import Config

    if args.config:
        arguments = Config.fromfile(args.config).to_dict().get('model', {}).get('backbone', {})
        if arguments.get('type') not in plain.BACKBONES:
            found = arguments.get('type', 'missing')
            accepted = ', '.join(plain.BACKBONES)
            raise cli.UsageError(
                f'config: model.backbone.type must be one of {accepted}, it is {found}'
            )
        arguments.pop('init_cfg', None)
    else:
        arguments = dict(type=args.type)
        if args.type == 'PyramidCPVT':
            arguments['final_norm'] = True
        elif args.to == 'timm':
            arguments['position'] = dict(type='Learned')
    config = Config(arguments)
    config.merge_from_dict(args.options)
    return config.to_dict() if args.config else {'arch': args.arch, **config.to_dict()}


def convert_to(arguments: dict, content: dict, args: argparse.Namespace) -> tuple:
    """Return the backbone of ``arguments``, the converted state dict and the report.

    Without a config, the backbone has a final norm if the source has one; mmseg's has none.
    """
    import cpvt_backbones
    from cpvt_backbones import checkpoints

    settings = dict(arguments)
    model = getattr(cpvt_backbones, settings.pop('type'))(**settings)
    options = dict(prefix=args.prefix, allow_missing=args.allow_missing, ema=args.ema)
    options['table_grid'] = args.table_grid
    try:
        with checkpoints.naming_file(args.source):
            return model, *checkpoints.convert_state_dict(content, model, **options)
    except checkpoints.CheckpointError as error:
        chosen = args.config or 'final_norm' in args.options
        missing = set(error.report.missing) if error.report else set()
        if chosen or not {'norm.weight', 'norm.bias'} <= missing:
            raise
    args.options = {**args.options, 'final_norm': False}
    return convert_to({**arguments, 'final_norm': False}, content, args)


def convert(args: argparse.Namespace) -> None:
    """Write the converted checkpoint."""
    import cpvt_backbones
    from cpvt_backbones import checkpoints

    args.options = cli.parse_values(args.options or {})
    cli.print_file_of(args.source)
    destination = checkpoints.check_destination(args.destination)
    arguments = backbone_arguments(args)
    content = checkpoints.read_checkpoint(args.source)
    model, state_dict, report = convert_to(arguments, content, args)
    print(report)
    meta = dict(source=report.source, converted_by=f'cpvt_backbones {cpvt_backbones.__version__}')
    meta |= checkpoints.normalisation_meta(checkpoints.find_normalisation(args.source))
    if args.to != 'cpvt':
        state_dict, report = checkpoints.export_state_dict(state_dict, model, to=args.to)
        print(report)
    checkpoints.write_checkpoint(state_dict, destination, meta=meta)
    print(f'{destination}: {len(state_dict)} tensors')


def check(args: argparse.Namespace) -> None:
    """Refuse missing files."""
    cli.check_checkpoint(args.source)
    if args.config:
        cli.check_config(args.config)


def main(argv: Sequence[str] | None = None) -> None:
    parser = cli.make_parser(__doc__)
    parser.add_argument('source', help=cli.CHECKPOINT)
    parser.add_argument('destination', help='.pth, .pt or .safetensors file to write')
    parser.add_argument(
        '--to', choices=plain.TARGETS, default='cpvt', help='package whose names are written'
    )
    backbone = parser.add_mutually_exclusive_group(required=True)
    backbone.add_argument(
        '--type', choices=plain.BACKBONES, help='backbone that the weights are for'
    )
    backbone.add_argument('--config', help='config with the backbone for the weights')
    parser.add_argument('--arch', default='small', help='size, with --type')
    options = 'arguments of the backbone: with_cls_token=False arch.depth=24 ...'
    parser.add_argument(
        '--options', nargs='+', action=cli.Overrides, metavar='KEY=VALUE', help=options
    )
    parser.add_argument(
        '--prefix', help="load only keys with this prefix, such as 'teacher.'; default: found"
    )
    missing = "keys the source may lack: 'pos_block.*'"
    parser.add_argument('--allow-missing', nargs='+', default=[], metavar='PATTERN', help=missing)
    grid = "grid of a plain ViT's position embedding in tokens, if the source lacks it"
    parser.add_argument('--table-grid', nargs=2, type=int, metavar=('HEIGHT', 'WIDTH'), help=grid)
    parser.add_argument('--ema', action='store_true', help='convert the averaged weights')
    parser.checks.append(check)
    convert(parser.parse_args(argv))
