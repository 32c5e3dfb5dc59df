"""The picture of a session in a terminal: lines of docs/evidence/cells_session.txt.

The file has what the commands of docs/own_data.md printed, recorded by `script`, without the
repeated lines of progress bars and the folder of the machine.
"""

import io
import re
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

SESSION = Path(__file__).parents[1] / 'evidence/cells_session.txt'
# Of each command, the lines that are shown.
SHOWN = {
    'make-config': r'used +\d+ (training|validation) images|class |data accepted|training: .+ to ',
    'train': r'training ━',
    'test': r'\+-|\| ',
    'infer': r'boxes with|pictures:',
}
BOX_AP = r'coco/bbox_mAP: [\d.]+'
WIDTHS = {'terminal': 80, 'terminal_narrow': 46}  # characters in a line
THEME = TerminalTheme(
    (23, 27, 34),
    (214, 220, 228),
    [(23, 27, 34), (240, 113, 120), (126, 211, 133), (240, 198, 116)]
    + [(125, 180, 240), (199, 146, 234), (114, 209, 218), (150, 158, 170), (74, 82, 94)],
)
STYLES = {
    r'^\$': 'bold green',
    r'^\$ (.+)': 'bold',
    r'data accepted': 'green',
    r'━+╸?': 'green',
    r'(?<=[╸╺])━+': 'bright_black',
    r'╺━+': 'bright_black',
    r'coco/bbox_mAP: [\d.]+': 'bold',
    r'\b\d+/\d+\b|\b0\.\d+\b|(?<= )\d+(?= )': 'cyan',
    r'[\d:]+ left': 'yellow',
    r'[+|]-*[+|-]*': 'white',
}


def read_session() -> dict[str, list[str]]:
    """What each command printed, by its name; the command itself is the first line."""
    parts = re.split(r'^(?=\$ cpvt )', SESSION.read_text(encoding='utf-8'), flags=re.M)
    return {part.split()[2]: part.splitlines() for part in parts if part}


def shown_lines() -> list[str]:
    """The lines of the picture, an empty one between two commands."""
    lines = []
    for name, (command, *printed) in read_session().items():
        kept = [line for line in printed if re.match(SHOWN[name], line)]
        if name == 'train':
            kept = kept[-1:]  # the finished bar
        if name == 'test':  # the box AP, from a line of all metrics
            kept += [f'… {score} …' for score in re.findall(BOX_AP, ' '.join(printed))]
        lines += [command, *kept, '']
    return lines[:-1]


def fitted(line: str, width: int) -> str:
    """A line as long as the picture is wide.

    A table loses columns, a bar two thirds of its length, the estimated time its conditions.
    """
    if line.startswith(('+', '|')) and len(line) > width:
        return line[: max(line.rfind('+', 0, width), line.rfind('|', 0, width)) + 1]
    if '━' in line and len(line) > width:
        return re.sub('[━╸╺]{3}', lambda part: part[0].strip('━')[:1] or '━', line)
    if line.startswith('training:') and len(line) > width:
        return re.findall(rf'^.{{1,{width}}}(?= with | on |, by )', line)[0]
    return line


def draw(name: str) -> str:
    """An SVG file of a width of ``WIDTHS``."""
    width = WIDTHS[name]
    console = Console(record=True, width=width, file=io.StringIO(), color_system='truecolor')
    for line in shown_lines():
        text = Text(fitted(line, width))
        for pattern, style in STYLES.items():
            text.highlight_regex(pattern, style)
        console.print(text)
    return console.export_svg(title='cpvt', theme=THEME, unique_id=name)


def save(folder: Path) -> None:
    """Write the picture for both widths."""
    for name in WIDTHS:
        (folder / f'{name}.svg').write_text(draw(name), encoding='utf-8')
