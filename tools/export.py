"""``cpvt export`` as a script."""

from cpvt.command_line import run
from cpvt.export import main

if __name__ == '__main__':
    run(main)
