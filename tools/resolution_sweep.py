"""``cpvt resolution-sweep`` as a script."""

from cpvt.command_line import run
from cpvt.resolution_sweep import main

if __name__ == '__main__':
    run(main)
