"""Run a script of timm's with this package's models registered: ``python -m
cpvt_backbones.timm_models.run train.py FOLDER --model cpvt_tiny``.
"""

import sys

from cpvt_backbones.run import run_script

if __name__ == '__main__':
    run_script(sys.argv[1:])
