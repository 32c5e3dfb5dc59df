"""``cpvt convert-checkpoint`` as a script."""

from cpvt.command_line import run
from cpvt.convert_checkpoint import main

if __name__ == '__main__':
    run(main)
