"""Training, resuming and testing on a GPU. Without one all tests are skipped."""

import pytest
import torch
from tiny_configs import TASKS

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason='there is no GPU')


@pytest.mark.parametrize('flags', ['', '--amp', '--amp --amp-dtype bfloat16'])
@pytest.mark.parametrize('toolbox', TASKS)
def test_training_resuming_and_testing(toolbox, flags, call, scenes, tmp_path):
    """``--amp`` alone is float16 on a GPU."""
    pytest.importorskip(toolbox)
    config, options = TASKS[toolbox](scenes, tmp_path)
    work = tmp_path / 'work'
    words = (*flags.split(), '--work-dir', work, '--cfg-options', *options)
    torch.cuda.reset_peak_memory_stats()
    call('train', config, *words, 'train_cfg.max_iters=1', 'train_cfg.val_interval=1')
    call('train', config, '--resume', *words)
    assert torch.cuda.max_memory_allocated() > 0
    saved = torch.load(work / 'iter_2.pth', weights_only=False)
    assert saved['meta']['iter'] == 2
    assert all(value.isfinite().all() for value in saved['state_dict'].values())
    call('test', config, work / 'iter_2.pth', '--cfg-options', *options)
