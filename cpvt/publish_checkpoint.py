"""Write the weights of a training checkpoint for release, with a hash in the file name.

    cpvt publish-checkpoint runs/epoch_12.pth retinanet.pth
    cpvt publish-checkpoint work_dirs/retinanet pcpvt-s.safetensors \\
        --backbone --half

Optimizer, logs and random states are left out. The first eight digits of the file's SHA-256 are
added to the name.
"""

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from cpvt import command_line as cli


def publish(source: str, destination: str, *, backbone: bool, half: bool) -> Path:
    """Write the weights of ``source``; return the path of the file."""
    import torch

    from cpvt_backbones import __version__
    from cpvt_backbones.checkpoints import (
        CheckpointError,
        check_destination,
        find_normalisation,
        normalisation_meta,
        read_checkpoint,
        write_checkpoint,
    )
    from cpvt_backbones.weights import sha256_of

    path = check_destination(destination)
    checkpoint = read_checkpoint(source)
    weights = checkpoint.get('state_dict', checkpoint)
    if backbone:
        weights = {
            k.removeprefix('backbone.'): v for k, v in weights.items() if k.startswith('backbone.')
        }
        if not weights:
            raise CheckpointError(f'--backbone: {source!r} has no weights under backbone.')
    weights = {k: v for k, v in weights.items() if isinstance(v, torch.Tensor)}
    if not weights:
        raise CheckpointError(f'{source!r} holds no weights')
    if half:
        weights = {k: v.half() if v.is_floating_point() else v for k, v in weights.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    # In a new folder until the hash is known, so that no existing file is replaced.
    with TemporaryDirectory(prefix='.publish-', dir=path.parent) as folder:
        unnamed = Path(folder, path.name)
        meta = dict(published_by=f'cpvt_backbones {__version__}')
        meta |= normalisation_meta(find_normalisation(source))
        write_checkpoint(weights, unnamed, meta=meta)
        digest = sha256_of(unnamed)[:8]
        return unnamed.replace(path.with_name(f'{path.stem}-{digest}{path.suffix}'))


def main(argv: Sequence[str] | None = None) -> None:
    parser = cli.make_parser(__doc__)
    parser.add_argument('source', help=cli.CHECKPOINT)
    parser.add_argument('destination', help='.pth, .pt or .safetensors file')
    parser.add_argument(
        '--backbone', action='store_true', help='only the backbone, without its prefix'
    )
    parser.add_argument('--half', action='store_true', help='in fp16')
    parser.checks.append(lambda args: cli.check_checkpoint(args.source))
    args = parser.parse_args(argv)
    cli.print_file_of(args.source)
    path = publish(args.source, args.destination, backbone=args.backbone, half=args.half)
    print(f'{path}  {path.stat().st_size / 2**20:.1f} MiB')
