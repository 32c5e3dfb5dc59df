"""Cases of the benchmark: which models take turns in which setting, and what pages compare."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import yaml

from cpvt_backbones.checks import check_choice, check_int
from cpvt_backbones.errors import InputError

from .models import MODELS
from .routes import base_of

SUITES = Path(__file__).parent / 'suites'
DTYPES = ('fp32', 'amp-bf16', 'bf16')
MODES = ('forward', 'train')
SETTING = ['comparison', 'height', 'width', 'batch', 'dtype', 'mode', 'device']
"""Columns of the CSV that identify a case."""


@dataclass(frozen=True)
class BenchmarkCase:
    """Models that take turns in one setting.

    ``ValueError`` for an unknown model or value, or a fused one to train.
    """

    # Names in MODELS, with a suffix of ROUTES appended or without; the first is the baseline.
    models: tuple[str, ...]
    height: int  # px
    width: int
    batch: int  # images a call
    # name of this set of models; two sets in one setting are two cases: they took no turns
    comparison: str = 'models'
    dtype: str = 'fp32'  # or 'amp-bf16' (autocast), 'bf16' (weights and images)
    mode: str = 'forward'  # (inference) or 'train' (forward and backward, no optimizer)
    device: str = 'cpu'  # or 'cuda'
    repeats: int = 3  # timed calls of each model

    def __post_init__(self) -> None:
        check_int(height=self.height, width=self.width, batch=self.batch, repeats=self.repeats)
        check_choice(DTYPES, dtype=self.dtype)
        check_choice(MODES, mode=self.mode)
        for name in self.models:
            check_choice(MODELS, models=base_of(name))
            route = name.removeprefix(base_of(name))
            if self.mode == 'train' and (
                base_of(name).endswith('_fused') or route not in ('', '_compiled')
            ):
                raise InputError(
                    f"models must be trainable with mode='train', got {name!r}, for inference only"
                )

    @property
    def setting(self) -> dict[str, Any]:
        """Values of the columns :data:`SETTING`."""
        return {name: getattr(self, name) for name in SETTING}

    def __str__(self) -> str:
        return title(self.setting.values())

    def select(self, rows: pd.DataFrame) -> pd.DataFrame:
        """The rows of this case."""
        return rows[(rows[SETTING] == pd.Series(self.setting)).all(axis=1)]


def title(setting: Iterable[Any]) -> str:
    """Values of the columns :data:`SETTING` as a heading."""
    comparison, height, width, batch, dtype, mode, device = setting
    return f'{comparison}, {height} x {width}, batch {batch}, {dtype}, {mode}, {device}'


class Comparison(NamedTuple):
    """Models of a case that a page compares with one of this package, the first."""

    what: str  # model and setting
    case: BenchmarkCase
    models: dict[str, str]  # label by the model's name

    def milliseconds(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Median, lowest and highest time of a call over the rounds (columns) by model (index)."""
        rounds = self.case.select(rows).groupby('model')['seconds']
        return rounds.agg(['median', 'min', 'max']).loc[list(self.models)] * 1e3

    def speeds(self, rows: pd.DataFrame) -> pd.DataFrame:
        """How many times as fast the first model is as each other one (columns) in each round."""
        seconds = self.case.select(rows).pivot(index='round', columns='model', values='seconds')
        first, *others = self.models
        return seconds[others].div(seconds[first], axis=0)


def read_suite(name: str) -> tuple[list[BenchmarkCase], list[Comparison]]:
    """The cases of a file in ``suites/``, and what docs compare of them, nothing by default."""
    suite = yaml.safe_load((SUITES / f'{name}.yaml').read_text(encoding='utf-8'))
    cases = {
        key: BenchmarkCase(tuple(case['models']), **case['setting'])
        for key, case in suite['cases'].items()
    }
    compared = [
        Comparison(one['what'], cases[one['case']], one['models'])
        for one in suite.get('compared', [])
    ]
    return list(cases.values()), compared
