"""``cpvt get-flops`` as a script."""

from cpvt.command_line import run
from cpvt.get_flops import main

if __name__ == '__main__':
    run(main)
