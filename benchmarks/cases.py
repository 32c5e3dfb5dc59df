"""Cases of the benchmark: which models take turns in which setting, and the ratios and bars
reported from them.
"""

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

    models: tuple[
        str, ...
    ]  # names in MODELS, with a suffix of ROUTES appended or without; the first is the baseline
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


class Ratio(NamedTuple):
    """A figure of one model, divided by that of a peer in the same round."""

    what: str  # name of the row
    case: BenchmarkCase
    model: str
    bound: float  # the accepted value: at most for memory, at least for everything else
    peer: str | None = None  # model to compare with; None reports the figure itself
    figure: str = 'images_per_second'  # column of the CSV
    peer_case: BenchmarkCase | None = None  # default: `case`

    def values(self, rows: pd.DataFrame) -> pd.Series:
        """The ratio of each round in which both were measured."""

        def figures(case: BenchmarkCase, model: str) -> pd.Series:
            return case.select(rows[rows['model'] == model]).set_index('round')[self.figure]

        value = figures(self.case, self.model)
        return (
            value if self.peer is None else value / figures(self.peer_case or self.case, self.peer)
        ).dropna()

    @property
    def sign(self) -> str:
        """``'<='`` or ``'>='`` :attr:`bound`."""
        return '<=' if self.figure == 'peak_mib' else '>='

    def reached(self, value: float) -> bool:
        """True if a value is within the bound."""
        return value <= self.bound if self.sign == '<=' else value >= self.bound


class BarGroup(NamedTuple):
    """Some models of a case, each a bar of the plot."""

    what: str  # heading of the group
    case: BenchmarkCase
    models: dict[str, str]  # label of each bar by the model's name; the first is this package's

    def milliseconds(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Median, lowest and highest time of a call over the rounds (columns) by model (index)."""
        rounds = self.case.select(rows).groupby('model')['seconds']
        return rounds.agg(['median', 'min', 'max']).loc[list(self.models)] * 1e3


def read_suite(name: str) -> tuple[list[BenchmarkCase], list[Ratio]]:
    """The cases of a file in ``suites/``, and the ratios reported from them."""
    suite, cases = _read_cases(name)
    ratios: list[dict[str, Any]] = suite['ratios']
    for ratio in ratios:
        ratio |= {key: cases[ratio[key]] for key in ('case', 'peer_case') if key in ratio}
    return list(cases.values()), [Ratio(**ratio) for ratio in ratios]


def read_bars(name: str) -> list[BarGroup]:
    """The bars that a file in ``suites/`` plots, none by default."""
    suite, cases = _read_cases(name)
    return [
        BarGroup(group['what'], cases[group['case']], group['models'])
        for group in suite.get('bars', [])
    ]


def _read_cases(name: str) -> tuple[dict[str, Any], dict[str, BenchmarkCase]]:
    """A file in ``suites/``, and its cases by name."""
    suite = yaml.safe_load((SUITES / f'{name}.yaml').read_text(encoding='utf-8'))
    cases = {
        key: BenchmarkCase(tuple(case['models']), **case['setting'])
        for key, case in suite['cases'].items()
    }
    return suite, cases
