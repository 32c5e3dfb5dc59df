"""``cpvt publish-checkpoint`` as a script."""

from cpvt.command_line import run
from cpvt.publish_checkpoint import main

if __name__ == '__main__':
    run(main)
