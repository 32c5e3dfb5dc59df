"""Write the training pictures of a config with their labels, as the model sees them; the toolbox's own tool does it.

python tools/browse_dataset.py CONFIG --output-dir work_dirs/browse --number 20
"""

import argparse
import inspect
import runpy
import sys
from importlib.util import find_spec
from pathlib import Path

from _common import config_from
from mmengine.config import DictAction

from cpvt_backbones.engine.launch import find_toolbox

SCRIPTS = {
    'mmdet': 'analysis_tools/browse_dataset.py',
    'mmseg': 'analysis_tools/browse_dataset.py',
    'mmpretrain': 'visualization/browse_dataset.py',
}


def _mend_adjust_bbox() -> None:
    """mmpretrain's tool calls matplotlib as it was when the renderer could be left out."""
    from matplotlib import _tight_bbox

    adjust = _tight_bbox.adjust_bbox
    if inspect.signature(adjust).parameters['renderer'].default is inspect.Parameter.empty:
        _tight_bbox.adjust_bbox = lambda figure, box, renderer=None, *rest: adjust(
            figure, box, renderer or figure.canvas.get_renderer(), *rest
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('config', help='config file')
    parser.add_argument('--output-dir', required=True, help='folder for the pictures')
    parser.add_argument('--number', type=int, help='only the first so many images (default: all)')
    parser.add_argument('--cfg-options', nargs='+', action=DictAction, help='override values of the config')
    args = parser.parse_args()
    if args.number is not None and args.number < 1:
        parser.error(f'--number must be at least 1, got {args.number}')
    cfg = config_from(parser, args)
    if args.number is not None:
        cfg.train_dataloader.dataset.indices = args.number
    # The toolbox's tool reads a file: the config as it is by now, whatever package it inherits from.
    folder = Path(args.output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    resolved = folder / 'config.py'
    cfg.dump(resolved)
    toolbox = find_toolbox(cfg).package
    script = Path(find_spec(toolbox).origin).parent / '.mim' / 'tools' / SCRIPTS[toolbox]
    if not script.is_file():
        parser.error(f'{toolbox} is installed without its tools: there is no {script}')
    if toolbox == 'mmpretrain':
        _mend_adjust_bbox()
    sys.argv = [str(script), str(resolved), '--output-dir', str(folder), '--not-show']
    runpy.run_path(str(script), run_name='__main__')


if __name__ == '__main__':
    main()
