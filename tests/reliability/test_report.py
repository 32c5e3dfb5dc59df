"""The page of promises has the figures of its record."""

import pandas as pd
from report import PROMISES, ROOT, table

PAGE = ROOT / 'docs/reliability.md'


def test_the_page_is_that_of_the_record_and_has_every_promise():
    rows = pd.read_csv(PAGE.with_suffix('.csv'))
    assert dict(zip(rows['promise'], rows['tests'], strict=True)) == PROMISES
    part = PAGE.read_text().partition('<!-- promises: begin -->\n')[2]
    assert part.partition('\n<!-- promises: end -->')[0] == table(rows)


def test_cases_that_did_not_hold_are_told():
    row = dict(promise='One', tests='tests/a/test_b.py -k c', tried=5, held=4, machine='A machine.')
    assert table(pd.DataFrame([row])).endswith('| One | 4 of 5 | [b](../tests/a/test_b.py) |')
