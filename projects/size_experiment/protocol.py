"""Settings, rows and order of the runs; README.md gives the reasons."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

Plan = dict[str, Any]

PLAN: Plan = dict(
    arch='tiny',
    taps=[8, 11],
    train_size=64,
    sizes=[32, 48, 64, 96, 128],
    seeds=[0, 1, 2],
    rates=[5e-4, 1e-3, 2e-3],
    rate_limits=[2.5e-4, 4e-3],
    rate_seed=9,
    rate_epochs=5,
    epochs=20,
    steps=105,
    batch_size=128,
    views=6,
    teacher_size=160,
    held_out_every=10,
    precision='bfloat16',
    dense_sizes=[0.5, 0.75, 1.0, 1.5, 2.0],
    dense_iterations=400,
)
"""Sizes in px; an epoch is ``steps`` batches; the sizes of the dense task are factors of its
training size.
"""

POSITIONS: dict[str, dict[str, Any] | None] = {
    'none': None,
    'table': dict(type='Learned'),
    'peg': dict(type='PEG', after_blocks='0-5', kernel_size=3),
    'rope-mixed': dict(type='RoPE', mode='mixed'),
    'rope-dinov3': dict(type='RoPE', mode='dinov3', rescale_coords=2.0),
}
ROPES = ('rope-mixed', 'rope-dinov3')
"""Two forms of RoPE, of which one becomes the row ``rope``."""
ROWS = ('none', 'table', 'peg', 'rope')
RATE, FINAL = 'rate', 'final'  # stages


class Run(NamedTuple):
    """One training. ``form`` is a key of ``POSITIONS``; ``seed`` that of weights, order and
    crops.
    """

    stage: str
    form: str
    seed: int
    rate: float

    @property
    def name(self) -> str:
        """Name of the run's folder."""
        return f'{self.stage}_{self.form}_rate-{self.rate:g}_seed-{self.seed}'

    @property
    def row(self) -> str:
        """Row of the results' table."""
        return 'rope' if self.form in ROPES else self.form


def plan_digest(plan: Plan) -> str:
    """Twelve hexadecimal digits of a plan."""
    return hashlib.sha256(json.dumps(plan, sort_keys=True).encode()).hexdigest()[:12]


def best(scores: Mapping[float, float]) -> float:
    """The rate of the best score; of equals the lowest."""
    return max(sorted(scores), key=lambda rate: scores[rate])


def rates_to_try(scores: Mapping[float, float], plan: Plan) -> list[float]:
    """Rates that are not measured yet.

    Those of the plan come first. Then follow neighbours of the best rate, half and twice it, within
    the plan's limits.
    """
    missing = [rate for rate in plan['rates'] if rate not in scores]
    if missing:
        return missing
    low, high = plan['rate_limits']
    middle = best(scores)
    neighbours = [rate for rate in (middle / 2, middle * 2) if low <= rate <= high]
    return [rate for rate in neighbours if rate not in scores]


def rate_trials(rows: pd.DataFrame, form: str, plan: Plan) -> pd.DataFrame:
    """Held-out accuracy at each size (columns) of each rate (index) of a form."""
    columns = [f'held_{size}' for size in plan['sizes']]
    trials = rows[(rows['stage'] == RATE) & (rows['form'] == form)].set_index('rate')
    return trials.reindex(columns=columns).astype(float)


def at_training_size(trials: pd.DataFrame, plan: Plan) -> dict[float, float]:
    """Held-out accuracy of each rate."""
    scores: dict[float, float] = trials[f'held_{plan["train_size"]}'].to_dict()
    return scores


class Choice(NamedTuple):
    """A learning rate of a form of an encoding, and its held-out accuracy, the mean over all
    sizes.
    """

    form: str
    rate: float
    mean: float


def choose_rate(rows: pd.DataFrame, form: str, plan: Plan) -> Choice | None:
    """The rate with the best held-out accuracy at the training size; ``None`` until it is known."""
    trials = rate_trials(rows, form, plan)
    scores = at_training_size(trials, plan)
    if rates_to_try(scores, plan):
        return None
    rate = best(scores)
    return Choice(form, rate, float(trials.loc[rate].mean()))


def choose_row(rows: pd.DataFrame, row: str, plan: Plan) -> Choice | None:
    """Form and rate of a row; of RoPE's two forms the one with the best mean over all sizes."""
    forms: Sequence[str] = ROPES if row == 'rope' else (row,)
    choices = [choose_rate(rows, form, plan) for form in forms]
    known = [choice for choice in choices if choice is not None]
    if len(known) < len(choices):
        return None
    return max(known, key=lambda choice: choice.mean)


def order(rows: pd.DataFrame, plan: Plan) -> tuple[list[Run], int]:
    """Runs that can start, in their order, and the number of those that wait for others.

    First the rates of all forms, then the rows seed by seed, so that an unfinished experiment has
    whole seeds.
    """
    ready: list[Run] = []
    for form in POSITIONS:
        scores = at_training_size(rate_trials(rows, form, plan), plan)
        for rate in rates_to_try(scores, plan):
            ready.append(Run(RATE, form, plan['rate_seed'], rate))
    waiting = 0
    finished = rows[rows['stage'] == FINAL]
    for seed in plan['seeds']:
        for row in ROWS:
            choice = choose_row(rows, row, plan)
            if choice is None:
                waiting += 1
                continue
            same = (finished['form'] == choice.form) & (finished['seed'] == seed)
            if not same.any():
                ready.append(Run(FINAL, choice.form, seed, choice.rate))
    return ready, waiting
