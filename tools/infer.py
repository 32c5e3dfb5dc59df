"""``cpvt infer`` as a script."""

from cpvt.command_line import run
from cpvt.infer import main

if __name__ == '__main__':
    run(main)
