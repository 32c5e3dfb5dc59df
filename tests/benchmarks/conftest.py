"""Models of known cost, and rows as a round of a case leaves them."""

import pandas as pd
import pytest
from torch import nn

from benchmarks.models import MODELS
from benchmarks.report import COLUMNS


def linear(width):
    """A model of one matrix for images of 32 x 48 px."""
    return lambda: nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 48, width, bias=False))


MODELS |= {'narrow': linear(10), 'wide': linear(2000), **dict.fromkeys('abc', linear(10))}


@pytest.fixture
def rows():
    """``rows(case, seconds={'a': 0.5}, round=2, peak_mib=3.0)``: a row for each model of a case."""

    def build(case, seconds, **figures):
        defaults = dict(
            round=1,
            peak_mib=10.0,
            gflop=1.0,
            matmul_share=0.5,
            gbyte=1.0,
            copy_share=0.25,
            peg_share=0.25,
        )
        records = [
            {
                **case.setting,
                **defaults,
                'model': model,
                'seconds': time,
                'quartile1': time * 0.9,
                'quartile3': time * 1.1,
                'images_per_second': case.batch / time,
                'machine': 'a processor, 2 cores',
                **figures,
            }
            for model, time in seconds.items()
        ]
        return pd.DataFrame(records)[COLUMNS]

    return build
