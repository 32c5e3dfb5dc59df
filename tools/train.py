"""``cpvt train`` as a script."""

from cpvt.command_line import run
from cpvt.train import main

if __name__ == '__main__':
    run(main)
