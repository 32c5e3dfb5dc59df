"""What the command lines share."""

import argparse
import os
from pathlib import Path

from mmengine.config import Config, DictAction

from cpvt_backbones.engine.launch import read_config

ROOT = Path(__file__).resolve().parents[1]


def add_config_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that every tool which reads a config has."""
    parser.add_argument(
        '--cfg-options',
        nargs='+',
        action=DictAction,
        metavar='KEY=VALUE',
        help='override values of the config: train_dataloader.batch_size=4 model.backbone.arch=small taps="[2,5,8,11]"',
    )


def add_run_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the tools that start a Runner, perhaps on many GPUs."""
    add_config_arguments(parser)
    parser.add_argument('--work-dir', help='where logs and checkpoints go (default: work_dirs/<name of the config>)')
    parser.add_argument('--launcher', choices=('none', 'pytorch', 'slurm', 'mpi'), default='none', help='job launcher')
    # torch.distributed.launch passes it, torchrun sets the variable instead.
    parser.add_argument('--local_rank', '--local-rank', type=int, default=0, help=argparse.SUPPRESS)


def config_from(parser: argparse.ArgumentParser, args: argparse.Namespace) -> Config:
    """The config that ``args.config`` and the options above describe; what is wrong with it ends in one line."""
    os.environ.setdefault('LOCAL_RANK', str(getattr(args, 'local_rank', 0)))
    try:
        return read_config(
            args.config,
            cfg_options=args.cfg_options,
            work_dir=getattr(args, 'work_dir', None),
            launcher=getattr(args, 'launcher', 'none'),
        )
    except (FileNotFoundError, ImportError, ValueError) as error:
        parser.error(str(error))
