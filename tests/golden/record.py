"""Write golden.json anew: ``python tests/golden/record.py [PART OF A CASE'S NAME ...]``, all cases
without a name.

For a change that is meant to change outputs; the difference in golden.json then says which. Prints
the largest relative difference from what was recorded before.
"""

import json
import sys
import tempfile
import time
from pathlib import Path

from golden_cases import CASES, Summary, difference, summarise

FILE = Path(__file__).with_name('golden.json')


def read() -> dict[str, dict[str, Summary]]:
    return json.loads(FILE.read_text(encoding='utf-8')) if FILE.is_file() else {}


def rounded(summary: Summary) -> Summary:
    """Nine digits, which tell two fp32 numbers apart."""
    return {
        key: [float(f'{number:.9g}') if key != 'shape' else number for number in numbers]
        for key, numbers in summary.items()
    }


def main() -> None:
    words, golden = sys.argv[1:], read()
    recorded = {}
    for name, run in CASES.items():
        if words and not any(word in name for word in words):
            if name in golden:
                recorded[name] = golden[name]
            continue
        start = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            recorded[name] = {
                key: rounded(summarise(output)) for key, output in run(Path(folder)).items()
            }
        old = golden.get(name, {})
        worst = max(
            (
                difference(s, old[key]) if key in old else float('inf')
                for key, s in recorded[name].items()
            )
        )
        print(f'{worst:8.1e} {time.perf_counter() - start:5.1f} s  {name}', flush=True)
    lines = []
    for name, outputs in recorded.items():
        body = ',\n'.join(
            f'    {json.dumps(key)}: {json.dumps(summary)}' for key, summary in outputs.items()
        )
        lines.append(f'  {json.dumps(name)}: {{\n{body}\n  }}')
    FILE.write_text('{\n' + ',\n'.join(lines) + '\n}\n', encoding='utf-8')


if __name__ == '__main__':
    main()
