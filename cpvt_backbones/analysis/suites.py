"""Comparisons worth repeating: which models meet in which setting, and the ratios that are read off."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from .benchmark import COMPILED, run_group, with_shares
from .benchmark_rows import Group, Row
from .machine import measure_limits


@dataclass(frozen=True)
class Meeting:
    """Models that take turns in one setting, this many timed calls each; the first is what others are told against."""

    models: tuple[str, ...]
    group: Group
    repeats: int = 3


def run_meeting(meeting: Meeting, number: int) -> list[Row]:
    """Measure the models of a meeting between two looks at the machine's limits; ``number``: which round this is."""
    group = meeting.group
    before = measure_limits(group.device, group.dtype)
    rows = run_group(meeting.models, group, repeats=meeting.repeats, number=number)
    rate, bandwidth = map(max, before, measure_limits(group.device, group.dtype))
    return [with_shares(row, matmul_rate=rate, bandwidth=bandwidth) for row in rows]


@dataclass(frozen=True)
class Ratio:
    """One figure of a comparison.

    Attributes:
        what: In words.
        figure: ``'speed'``: how many times faster ``model`` is than ``peer``; ``'memory'``: peak memory of ``model``
            over that of ``peer``; ``'matmul'``: share of the machine's matmul rate that ``model`` reaches.
        model, group: The row it is about.
        peer, peer_group: The row it is told against; the same setting where ``peer_group`` is ``None``.
        bound: What it should reach: at most for memory, else at least.
    """

    what: str
    figure: str
    model: str
    group: Group
    peer: str
    bound: float
    peer_group: Group | None = None

    def value(self, rows: Iterable[Row]) -> float | None:
        """The figure from the rows of one round, or ``None`` where one is missing."""
        found = {(row.model, row.group): row for row in rows}
        mine = found.get((self.model, self.group))
        other = found.get((self.peer, self.peer_group or self.group))
        if mine is None or other is None:
            return None
        if self.figure == 'matmul':
            return mine.matmul_share
        if self.figure == 'memory':
            return mine.peak_mib / other.peak_mib
        return mine.images_per_second / other.images_per_second

    def reached(self, value: float) -> bool:
        """Whether a value keeps the bound."""
        return value <= self.bound if self.figure == 'memory' else value >= self.bound

    def text(self, value: float) -> str:
        """A value with as many digits as it takes to see whether it keeps the bound."""
        texts = (_digits(value, digits) for digits in range(2, 6))
        return next((text for text in texts if self.reached(float(text)) == self.reached(value)), repr(value))


BATCHES = Group(height=224, width=224, batch=8, comparison='columns')
MIDDLE = replace(BATCHES, height=512, width=512, batch=2)
DETECTION = replace(BATCHES, height=800, width=1344, batch=1)
TRAINING = replace(MIDDLE, mode='train')
PYRAMID_BATCHES = replace(BATCHES, comparison='pyramids')
PYRAMID_DETECTION = replace(DETECTION, comparison='pyramids')
EAGER_AND_COMPILED = replace(PYRAMID_BATCHES, comparison='eager and compiled')
WINDOWS = replace(DETECTION, comparison='windows')
SMALL_SQUARE = replace(WINDOWS, height=512, width=512)
LARGE_SQUARE = replace(WINDOWS, height=2048, width=2048)
PADDED_COLUMNS = replace(DETECTION, batch=2, comparison='padded columns')
PADDED_PYRAMIDS = replace(PADDED_COLUMNS, comparison='padded pyramids')

DEIT, TWINS, PLAIN = 'timm_deit_small', 'timm_twins_pcpvt_small', 'algorithm1_small'
COLUMN, GAP_FUSED, PYRAMID = 'cpvt_small', 'cpvt_small_gap_fused', 'pyramid_cpvt_small'
GLOBAL, WINDOWED = 'multi_scale_cpvt_small', 'multi_scale_cpvt_small_windowed'
ALL_WINDOWED = 'multi_scale_cpvt_small_all_windowed'

GPU_BATCHES = Group(height=224, width=224, batch=256, dtype='bf16', device='cuda', comparison='columns')
GPU_DETECTION = Group(height=800, width=1344, batch=8, dtype='bf16', device='cuda', comparison='columns')
GPU_TRAINING = replace(GPU_DETECTION, batch=2, dtype='amp-bf16', mode='train')
GPU_PYRAMIDS = replace(GPU_DETECTION, comparison='pyramids')
GPU_PYRAMID_TRAINING = replace(GPU_TRAINING, comparison='pyramids')
GPU_WINDOWS = replace(GPU_DETECTION, comparison='windows')
BASE, BASE_PLAIN = 'cpvt_base', 'algorithm1_base'

_COLUMNS = (DEIT, COLUMN, GAP_FUSED, PLAIN)
_PYRAMIDS = (TWINS, PYRAMID, 'pyramid_cpvt_small_fused', 'mmseg_pcpvt_small', 'mmpretrain_pcpvt_small')


def _compiled(*models: str) -> tuple[str, ...]:
    return tuple(f'{model}{COMPILED}' for model in models)


MEETINGS: dict[str, tuple[Meeting, ...]] = {
    'cpu': (
        Meeting((*_COLUMNS, 'mmpretrain_deit_small', 'mmseg_vit_small'), BATCHES, repeats=8),
        Meeting(_COLUMNS[:3], MIDDLE, repeats=9),
        Meeting(_COLUMNS, DETECTION, repeats=5),
        Meeting(_PYRAMIDS, PYRAMID_BATCHES, repeats=5),
        Meeting((*_PYRAMIDS, 'mmdet_pvt_small'), PYRAMID_DETECTION),
        Meeting((GLOBAL, WINDOWED, f'{WINDOWED}_2_global', ALL_WINDOWED), WINDOWS),
        Meeting((GLOBAL, f'{GLOBAL}_valid_sizes'), PADDED_COLUMNS, repeats=5),
        Meeting((PYRAMID, f'{PYRAMID}_valid_sizes'), PADDED_PYRAMIDS, repeats=5),
        Meeting((GLOBAL, WINDOWED, ALL_WINDOWED), SMALL_SQUARE),
        Meeting((GLOBAL, WINDOWED, ALL_WINDOWED), LARGE_SQUARE, repeats=1),
        Meeting((DEIT, COLUMN), TRAINING, repeats=5),
        Meeting((PYRAMID, *_compiled(PYRAMID, TWINS)), EAGER_AND_COMPILED, repeats=9),
    ),
    'gpu': (
        Meeting((*_compiled(DEIT, COLUMN, GAP_FUSED), DEIT, COLUMN, PLAIN), GPU_BATCHES, repeats=20),
        Meeting(('timm_deit_base', BASE, BASE_PLAIN), GPU_DETECTION, repeats=10),
        Meeting(_PYRAMIDS, GPU_PYRAMIDS, repeats=10),
        Meeting((GLOBAL, WINDOWED, f'{WINDOWED}_2_global', ALL_WINDOWED), GPU_WINDOWS, repeats=10),
        Meeting((TWINS, PYRAMID, 'mmseg_pcpvt_small', 'mmpretrain_pcpvt_small'), GPU_PYRAMID_TRAINING, repeats=10),
        Meeting(('timm_deit_base', BASE, BASE_PLAIN), GPU_TRAINING, repeats=10),
    ),
}
"""Name of a suite to its meetings; ``cpu``: about 22 minutes a round on two cores."""

RATIOS: dict[str, tuple[Ratio, ...]] = {
    'cpu': (
        *(
            Ratio(f'CPVT-S against DeiT-S, {group.height} x {group.width}', 'speed', COLUMN, group, DEIT, 0.98)
            for group in (BATCHES, MIDDLE, DETECTION)
        ),
        *(
            Ratio(
                f'CPVT-S-GAP fused against DeiT-S, {group.height} x {group.width}', 'speed', GAP_FUSED, group, DEIT, 1.0
            )
            for group in (BATCHES, MIDDLE, DETECTION)
        ),
        *(
            Ratio(
                f'CPVT-S against Algorithm 1 written plainly, {group.height} x {group.width}',
                'speed',
                COLUMN,
                group,
                PLAIN,
                3.0,
            )
            for group in (BATCHES, DETECTION)
        ),
        *(
            Ratio(f'PyramidCPVT-S against timm, {group.height} x {group.width}', 'speed', PYRAMID, group, TWINS, 1.05)
            for group in (PYRAMID_BATCHES, PYRAMID_DETECTION)
        ),
        Ratio('PyramidCPVT-S against mmseg, 800 x 1344', 'speed', PYRAMID, PYRAMID_DETECTION, 'mmseg_pcpvt_small', 2.0),
        Ratio(
            'PyramidCPVT-S against mmpretrain, 800 x 1344',
            'speed',
            PYRAMID,
            PYRAMID_DETECTION,
            'mmpretrain_pcpvt_small',
            1.1,
        ),
        *(
            Ratio(
                f'MultiScaleCPVT-S windowed ({count} blocks global) against global, 800 x 1344',
                'speed',
                m,
                WINDOWS,
                GLOBAL,
                1.8,
            )
            for count, m in (('four', WINDOWED), ('two', f'{WINDOWED}_2_global'))
        ),
        *(
            Ratio(
                f'{what} with valid_sizes against without, 800 x 1344, batch 2',
                'speed',
                f'{m}_valid_sizes',
                group,
                m,
                0.9,
            )
            for what, m, group in (
                ('MultiScaleCPVT-S', GLOBAL, PADDED_COLUMNS),
                ('PyramidCPVT-S', PYRAMID, PADDED_PYRAMIDS),
            )
        ),
        Ratio('share of the matmul rate, CPVT-S, 800 x 1344', 'matmul', COLUMN, DETECTION, COLUMN, 0.85),
        Ratio('CPVT-S training step against DeiT-S, 512 x 512', 'speed', COLUMN, TRAINING, DEIT, 0.98),
        Ratio(
            'PyramidCPVT-S compiled against eager, 224 x 224',
            'speed',
            f'{PYRAMID}{COMPILED}',
            EAGER_AND_COMPILED,
            PYRAMID,
            1.1,
        ),
        Ratio('memory of CPVT-S over DeiT-S, 800 x 1344', 'memory', COLUMN, DETECTION, DEIT, 1.0),
        Ratio('memory of PyramidCPVT-S over timm, 800 x 1344', 'memory', PYRAMID, PYRAMID_DETECTION, TWINS, 1.0),
        Ratio('memory of CPVT-S over Algorithm 1, 800 x 1344', 'memory', COLUMN, DETECTION, PLAIN, 0.2),
        *(
            Ratio(f'{what}, images/s at 2048^2 over 512^2 (1 / 18)', 'speed', m, LARGE_SQUARE, m, 1 / 18, SMALL_SQUARE)
            for what, m in (('windowed, four blocks global', WINDOWED), ('all blocks windowed', ALL_WINDOWED))
        ),
        Ratio('memory global, 2048^2 over 512^2', 'memory', GLOBAL, LARGE_SQUARE, GLOBAL, 18.0, SMALL_SQUARE),
    ),
    'gpu': (
        Ratio(
            'CPVT-S compiled against DeiT-S compiled, 224 x 224',
            'speed',
            f'{COLUMN}{COMPILED}',
            GPU_BATCHES,
            f'{DEIT}{COMPILED}',
            0.99,
        ),
        Ratio('share of the matmul rate, CPVT-B, 800 x 1344', 'matmul', BASE, GPU_DETECTION, BASE, 0.45),
        *(
            Ratio(f'PyramidCPVT-S against mmseg, 800 x 1344, {what}', 'speed', PYRAMID, group, 'mmseg_pcpvt_small', 2.5)
            for what, group in (('forward', GPU_PYRAMIDS), ('training step', GPU_PYRAMID_TRAINING))
        ),
        Ratio('training memory of CPVT-B over Algorithm 1', 'memory', BASE, GPU_TRAINING, BASE_PLAIN, 1 / 3),
    ),
}


def ratio_table(ratios: Sequence[Ratio], rows: Sequence[Row]) -> str:
    """The ratios as a Markdown table: median over the rounds, lowest and highest; empty where nothing was measured."""
    rounds = [[row for row in rows if row.round == number] for number in sorted({row.round for row in rows})]
    lines = ['| what | measured | bound | |', '| --- | ---: | ---: | --- |']
    for ratio in ratios:
        values = [value for value in map(ratio.value, rounds) if value is not None]
        shown = verdict = ''
        if values:
            middle = statistics.median(values)
            shown = ratio.text(middle)
            if min(values) < max(values):
                shown += f' ({_digits(min(values))}-{_digits(max(values))})'
            verdict = 'reached' if ratio.reached(middle) else 'missed'
        sign = '<=' if ratio.figure == 'memory' else '>='
        lines.append(f'| {ratio.what} | {shown} | {sign} {ratio.bound:.3g} | {verdict} |')
    return '\n'.join(lines)


def _digits(value: float, digits: int = 2) -> str:
    return f'{value:.{digits + 1}g}' if value < 0.1 else f'{value:.{digits}f}'
