"""``cpvt make-config`` as a script."""

from cpvt.command_line import run
from cpvt.make_config import main

if __name__ == '__main__':
    run(main)
