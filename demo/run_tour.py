"""Run demo/tour.ipynb and store its outputs: printed text, and pictures as small JPEG files.

python demo/run_tour.py
"""

import ast
import base64
import contextlib
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from cpvt import command_line as cli

NOTEBOOK = Path(__file__).with_name('tour.ipynb')
WIDTH = 640  # px, of a stored picture
QUALITY = 80


def read_notebook() -> dict[str, Any]:
    """The notebook as JSON."""
    return json.loads(NOTEBOOK.read_text(encoding='utf-8'))


def run_cells(notebook: dict[str, Any], namespace: dict[str, Any]) -> None:
    """Run the code cells in one namespace, as Jupyter does, and set their outputs."""
    cells = [cell for cell in notebook['cells'] if cell['cell_type'] == 'code']
    for count, cell in enumerate(cells, 1):
        *statements, last = ast.parse(''.join(cell['source'])).body
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            if not isinstance(last, ast.Expr):
                statements.append(last)
            exec(compile(ast.Module(statements, []), NOTEBOOK.name, 'exec'), namespace)
            value = None
            if isinstance(last, ast.Expr):
                value = eval(compile(ast.Expression(last.value), NOTEBOOK.name, 'eval'), namespace)
        outputs = [to_text(printed.getvalue())] if printed.getvalue().strip() else []
        if isinstance(value, Image.Image):
            outputs.append(to_picture(value, count))
        cell.update(execution_count=count, outputs=outputs)


def to_text(text: str) -> dict[str, Any]:
    """Output of printed lines."""
    return dict(name='stdout', output_type='stream', text=text.splitlines(keepends=True))


def to_picture(image: Image.Image, count: int) -> dict[str, Any]:
    """Output of a picture."""
    image = image.convert('RGB')
    image.thumbnail((WIDTH, WIDTH))
    file = io.BytesIO()
    image.save(file, 'JPEG', quality=QUALITY)
    data = {'image/jpeg': base64.b64encode(file.getvalue()).decode()}
    return dict(data=data, execution_count=count, metadata={}, output_type='execute_result')


def main(argv: Sequence[str] | None = None) -> None:
    cli.make_parser(__doc__).parse_args(argv)
    notebook = read_notebook()
    run_cells(notebook, {})
    text = json.dumps(notebook, indent=1, ensure_ascii=False)
    NOTEBOOK.write_text(f'{text}\n', encoding='utf-8')


if __name__ == '__main__':
    cli.run(main)
