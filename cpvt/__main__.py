"""``cpvt COMMAND ...``, the same as ``python -m cpvt COMMAND ...``."""

import sys
from collections.abc import Sequence
from types import ModuleType

from cpvt import (
    convert_checkpoint,
    export,
    get_flops,
    infer,
    make_config,
    publish_checkpoint,
    resolution_sweep,
    test,
    train,
)
from cpvt.command_line import plain, run, stop

# Commands in the order of `cpvt --help`, which is that of a project.
CONTENTS: dict[str, dict[str, tuple[ModuleType, str]]] = {
    'Train': {
        'make-config': (make_config, 'write a ready config for your own images and labels'),
        'train': (train, 'train the detector, segmentor or classifier of a config'),
        'test': (test, 'evaluate a checkpoint on the test set of its config'),
    },
    'Use a trained model': {
        'infer': (infer, 'predict on images of any size'),
        'export': (export, 'write the model to one file: ONNX, torch.export'),
    },
    'Weights': {
        'convert-checkpoint': (convert_checkpoint, 'rename weights of timm, mm packages, Twins'),
        'publish-checkpoint': (publish_checkpoint, 'keep the weights alone, with their hash'),
    },
    'Measure': {
        'get-flops': (get_flops, 'parameters, multiply-adds and memory at any size'),
        'resolution-sweep': (resolution_sweep, 'accuracy, time and memory at several sizes'),
    },
}
COMMANDS = {name: entry for group in CONTENTS.values() for name, entry in group.items()}


def contents() -> str:
    """Return the text of ``cpvt --help``."""
    lines = ['usage: cpvt COMMAND ...', '']
    lines.append('Detectors, segmentors and classifiers for images of any size.')
    for title, group in CONTENTS.items():
        lines += ['', f'{title}:']
        lines += [f'  {name:20s}{about}' for name, (_, about) in group.items()]
    lines += ['', 'cpvt COMMAND --help lists the options of a command, and has examples.']
    lines.append('python -m cpvt_backbones prints the versions and the shipped weights.')
    return '\n'.join(lines)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command that the first argument names."""
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in ('-h', '--help', 'help'):
        print(contents())
        return
    name, *rest = words
    if name not in COMMANDS:
        advice = plain.did_you_mean(name, COMMANDS) or '; cpvt --help lists them'
        stop(f'error: there is no command {name!r}{advice}', 2)
    command, _ = COMMANDS[name]
    sys.argv = [f'cpvt {name}', *rest]  # where argparse finds the name of the program
    run(command.main)


if __name__ == '__main__':
    main()
