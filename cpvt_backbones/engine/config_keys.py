"""Names at the top of a config that something reads; all others are variables of the file."""

import inspect

from mmengine.runner import FlexibleRunner, Runner

_READ_FROM_CFG = (
    'activation_checkpointing',
    'compile',
    'custom_imports',
    'efficient_conv_bn_eval',
    'find_unused_parameters',
    'init_weights_for_test_or_val',
    'model_wrapper_cfg',
    'runner_type',
    'sync_bn',
    'tta_model',
    'tta_pipeline',
)


def _arguments(runner: type) -> set[str]:
    return {*inspect.signature(runner).parameters} - {'cfg'}


# What mmengine's runners take, what they and mmengine's Config read beside it, and what tools/test.py --tta reads.
READ_KEYS = frozenset(_arguments(Runner) | _arguments(FlexibleRunner) | {*_READ_FROM_CFG})
