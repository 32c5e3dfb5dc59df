"""What the command lines of the analysis tools share."""

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from mmengine.config import Config
from rich.console import Console
from rich.table import Table

from cpvt_backbones.engine.launch import read_config


def split_name(text: str) -> tuple[str, str]:
    """``NAME=VALUE`` to both."""
    name, found, value = text.partition('=')
    if not (name and found and value):
        raise argparse.ArgumentTypeError(f'NAME=... is expected, got {text!r}')
    return name, value


def parse_model(text: str) -> tuple[str, str, str]:
    """``NAME=CONFIG:CHECKPOINT`` to the three."""
    name, value = split_name(text)
    config, found, checkpoint = value.partition(':')
    if not (config and found and checkpoint):
        raise argparse.ArgumentTypeError(f'NAME=CONFIG:CHECKPOINT is expected, got {text!r}')
    return name, config, checkpoint


def parse_size(text: str) -> tuple[int, int]:
    """``HEIGHTxWIDTH`` to both, in px."""
    height, _, width = text.partition('x')
    if not (width.isdecimal() and height.isdecimal() and int(width) and int(height)):
        raise argparse.ArgumentTypeError(f'HEIGHTxWIDTH is expected, as 480x640, got {text!r}')
    return int(height), int(width)


def read(parser: argparse.ArgumentParser, path: str, cfg_options: Mapping[str, Any] | None = None) -> Config:
    """A config; what is wrong with it ends in one line."""
    try:
        return read_config(path, cfg_options=dict(cfg_options or {}))
    except (FileNotFoundError, ImportError, ValueError) as error:
        parser.error(str(error))


def print_table(records: Sequence[Mapping[str, Any]]) -> None:
    """Records as a table on the terminal."""
    table = Table(*records[0])
    for record in records:
        table.add_row(*(_short(value) for value in record.values()))
    Console().print(table)


def _short(value: Any) -> str:
    """Four digits of what is a fraction; the rest as it is."""
    try:
        return f'{float(value):.4g}' if '.' in str(value) else str(value)
    except ValueError:
        return str(value)
