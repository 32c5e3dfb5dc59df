"""The workers of a data loader: options, shared memory, signals."""

import os
import signal
import subprocess
import sys

import pytest
import torch
from mmengine.structures import BaseDataElement, PixelData
from torch.utils.data import DataLoader

from cpvt_backbones.engine.workers import fit_to_workers, named_shared_memory, share_batches
from cpvt_backbones.errors import InputError

CODE = """
from torch.utils.data import DataLoader
from cpvt_backbones.engine.workers import shield_workers

class Data:
    def __len__(self):
        return 8

    def __getitem__(self, index):
        # One call of C, which no signal interrupts.
        return sum(range(30_000_000)) if index == 2 else index

loader = DataLoader(Data(), batch_size=None, num_workers=2, persistent_workers=True)
shield_workers(loader)
images = iter(loader)  # alive until the interpreter ends
print(next(images), next(images))
"""


@pytest.mark.full
def test_a_training_with_persistent_workers_ends_without_a_word():
    """multiprocessing ends them by SIGTERM, and torch reports a worker that it kills.

    While the main process waits for the first, which reads an image, the second ends.
    """
    done = subprocess.run([sys.executable, '-c', CODE], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout.split()) == (0, ['0', '1'])
    assert 'Exception ignored' not in done.stderr and 'killed by signal' not in done.stderr


def test_options_of_workers_go_where_there_are_none():
    """Each of them is refused by torch with ``num_workers=0``."""
    given = dict(persistent_workers=True, prefetch_factor=4, timeout=9)
    given['multiprocessing_context'] = 'spawn'
    for options in (given, dict(given, num_workers=0)):
        assert DataLoader([1, 2], **fit_to_workers(options)).num_workers == 0
    assert fit_to_workers(dict(given, num_workers=2)) == dict(given, num_workers=2)


# A limit on the size of files holds for /dev/shm.
WITHOUT_MEMORY = """
import resource, sys
import torch
from mmengine.config import Config
from mmengine.evaluator import BaseMetric, Evaluator
from mmengine.model import BaseModel
from mmengine.registry import RUNNERS
from mmengine.structures import PixelData
import cpvt_backbones
from cpvt_backbones.errors import InputError

class Images(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return dict(x=[PixelData(data=torch.zeros(3, 300, 400))])

class Model(BaseModel):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def forward(self, x, mode='tensor'):
        return dict(loss=self.weight.sum())

class Metric(BaseMetric):
    def process(self, *_):
        pass

    def compute_metrics(self, results):
        return {}

def limit(worker_id, **_):
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

loader = dict(dataset=Images(), sampler=dict(type='DefaultSampler', shuffle=False), batch_size=2,
              num_workers=1, persistent_workers=True, worker_init_fn=dict(type=limit))
runner = RUNNERS.get('ResumableRunner')(
    model=Model(), work_dir=sys.argv[1], default_scope='mmengine', log_level='WARNING',
    train_dataloader=loader, train_cfg=dict(by_epoch=True, max_epochs=1),
    optim_wrapper=dict(optimizer=dict(type='SGD', lr=0.1)), cfg=Config(dict(model={})),
    val_dataloader=loader, val_cfg={}, val_evaluator=Evaluator(Metric()),
    test_dataloader=loader, test_cfg={}, test_evaluator=Evaluator(Metric()))
for run in (runner.test, runner.val, runner.train):
    try:
        run()
    except InputError as error:
        print('error:', error)
"""


@pytest.mark.full
def test_a_worker_without_shared_memory_ends_a_run_in_one_line(tmp_path):
    """Otherwise the batch is lost in a thread of the worker, and the run waits for ever."""
    command = [sys.executable, '-c', WITHOUT_MEMORY, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=tmp_path)
    lines = [line for line in done.stdout.splitlines() if line.startswith('error: ')]
    assert done.returncode == 0 and len(lines) == 3, done.stderr
    for line in lines:
        assert 'got no shared memory: File too large (27) (/dev/shm has ' in line
        assert 'num_workers=0' in line and '--shm-size' in line


class Killed(torch.utils.data.Dataset):
    """Images whose worker has no page of shared memory left."""

    def __len__(self):
        return 1

    def __getitem__(self, index):
        os.kill(os.getpid(), signal.SIGBUS)


def test_a_worker_that_the_system_ends_for_want_of_shared_memory_is_named():
    loader = DataLoader(Killed(), num_workers=1)
    with pytest.raises(InputError, match='memory: Bus error') as caught, named_shared_memory():
        next(iter(loader))
    assert 'num_workers=0' in str(caught.value)


def test_a_classifier_gets_its_labels_from_workers():
    """mmpretrain's samples change when a worker pickles them."""
    structures = pytest.importorskip('mmpretrain.structures')
    samples = [structures.DataSample().set_gt_label(label) for label in (3, 1)]
    loader = DataLoader(samples, batch_size=2, num_workers=1, collate_fn=list)
    share_batches(loader)
    (batch,) = loader
    assert torch.cat([sample.gt_label for sample in batch]).tolist() == [3, 1]


def test_other_errors_keep_their_type():
    with pytest.raises(RuntimeError, match='^sizes differ$'), named_shared_memory():
        raise RuntimeError('sizes differ')


class Samples(torch.utils.data.Dataset):
    """Samples as the toolboxes nest them, with views of one storage."""

    def __len__(self):
        return 4

    def __getitem__(self, index):
        values = torch.arange(24.0).reshape(2, 3, 4) + index
        sample = BaseDataElement(metainfo=dict(img_shape=(3, 4)), map=PixelData(data=values[:1]))
        return dict(inputs=values, views=(values[0], values[:, 1]), samples=[sample], names=['a'])


def test_batches_of_workers_are_those_of_the_process():
    loaders = [DataLoader(Samples(), batch_size=None, num_workers=count) for count in (0, 1)]
    share_batches(loaders[1])
    for here, there in zip(*loaders, strict=True):
        assert torch.equal(here['inputs'], there['inputs']) and there['inputs'].is_shared()
        assert all(map(torch.equal, here['views'], there['views']))
        assert torch.equal(here['samples'][0].map.data, there['samples'][0].map.data)
        assert here['names'] == there['names']
