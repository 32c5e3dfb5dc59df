"""Print a config as it is after inheritance and overrides.

python tools/print_config.py CONFIG --cfg-options train_dataloader.batch_size=4
"""

import argparse

from _common import add_config_arguments, config_from


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('config', help='config file')
    add_config_arguments(parser)
    print(config_from(parser, parser.parse_args()).pretty_text)


if __name__ == '__main__':
    main()
