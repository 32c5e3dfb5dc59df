"""Trainings of a few iterations for the reliability tests, each in a forked process."""

import ctypes
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import cv2
import matplotlib.pyplot
import torch
import torch._dynamo
import torch.distributed
import torchvision
from mmengine.config import Config
from mmengine.evaluator import BaseMetric
from mmengine.fileio import LocalBackend, register_backend
from mmengine.model import BaseModel
from mmengine.registry import DATASETS, METRICS, MODELS, RUNNERS
from mmengine.runner import Runner
from torch import nn
from torch.utils.data._utils import worker as data_worker

import cpvt_backbones.engine.launch  # noqa: F401  registers the hook and CPUAmpOptimWrapper
from cpvt_backbones import CPVT

# Imported before the forks, not after each.
PRELOADED = (cv2, matplotlib.pyplot, torch._dynamo, torchvision)
# Seconds after which a data loader's worker sees that its training was killed; by default 5.
data_worker.MP_STATUS_CHECK_INTERVAL = 0.1
ITERATIONS, EPOCHS, LENGTH = 16, 2, 16
STEP, CHUNK = b's', b'c'
_reports = -1


def report(event: bytes) -> None:
    """Tell the parent process what happens.

    Wait until it answers, so that a kill hits this very moment.
    """
    if _reports >= 0:
        os.write(_reports, event)
        os.read(_reports, 1)


class SlowBackend(LocalBackend):
    """A file backend that writes in 16 chunks and reports each."""

    def put(self, obj: bytes, filepath: str) -> None:
        size = -(-len(obj) // 16)
        with open(filepath, 'wb') as file:
            for start in range(0, len(obj), size):
                file.write(obj[start : start + size])
                file.flush()
                report(CHUNK)


@DATASETS.register_module()
class NoisyImages(torch.utils.data.Dataset):
    """Random images with labels, augmented by noise of the global generator."""

    metainfo = dict(classes=('a', 'b'))

    def __init__(self, length: int = LENGTH) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, Any]:
        image = torch.randn(3, 24, 40, generator=torch.Generator().manual_seed(index))
        return dict(images=image + 0.1 * torch.randn(image.shape), labels=index % 2)


@MODELS.register_module()
class ReliabilityModel(BaseModel):
    """A classifier with stochastic depth, so that random states matter.

    It reports every training step.
    """

    depth = 2

    def __init__(self) -> None:
        super().__init__()
        arch = dict(embed_dims=16, depth=self.depth, num_heads=2, mlp_ratio=2.0)
        self.backbone = CPVT(
            arch=arch,
            patch_size=8,
            out_type='avg_featmap',
            with_cls_token=False,
            drop_path_rate=0.3,
        )
        self.head = nn.Linear(16, 2)

    def forward(self, images: torch.Tensor, labels: torch.Tensor, mode: str = 'tensor') -> Any:
        report(STEP)
        scores = self.head(self.backbone(images)[0])
        return dict(loss=nn.functional.cross_entropy(scores, labels)) if mode == 'loss' else scores


@METRICS.register_module()
class MeanScore(BaseMetric):
    """The mean of a model's outputs, which differs from one set of weights to another."""

    default_prefix = 'test'

    def process(self, data_batch: Any, data_samples: Any) -> None:
        self.results += [float(scores[0]) for scores in data_samples]

    def compute_metrics(self, results: list) -> dict[str, float]:
        return dict(score=sum(results) / len(results))


def config(
    work_dir: Path,
    *,
    by_epoch: bool = False,
    validate: bool = False,
    average: bool = False,
    accumulate: int = 1,
    workers: int = 0,
    persistent: bool = False,
    processes: int = 1,
    batch_size: int = 2,
    amp: bool = False,
    strategy: str | None = None,
    **checkpoint: Any,
) -> Config:
    """A training of 16 iterations, or of 2 epochs of 8, that saves every 4 iterations or every
    epoch.

    Args:
        work_dir: Folder of its checkpoints.
        by_epoch: Train by epochs.
        validate: Validate every 4 iterations or every epoch, with ``save_best``.
        average: Average the weights.
        accumulate: Iterations an update of the weights.
        workers, persistent, batch_size: Of the data loader.
        amp: Train in bfloat16.
        strategy: Train by mmengine's ``FlexibleRunner``, with this strategy.
        processes: See :func:`train`; the batch size of each is divided by it.
        checkpoint: Options of the checkpoint hook.
    """
    interval = 1 if by_epoch else 4
    hook = dict(
        type='DurableCheckpointHook', by_epoch=by_epoch, interval=interval, max_keep_ckpts=1
    )
    sampler = dict(type='DefaultSampler' if by_epoch else 'InfiniteSampler', shuffle=True)
    loader = dict(
        batch_size=batch_size // processes,
        num_workers=workers,
        persistent_workers=persistent,
        sampler=sampler,
        dataset=dict(type='NoisyImages'),
        collate_fn=dict(type='default_collate'),
    )
    loop = dict(max_epochs=EPOCHS) if by_epoch else dict(max_iters=ITERATIONS)
    validation = {}
    if validate:
        hook.update(save_best='test/score', rule='greater')
        validation = dict(
            val_dataloader={**loader, 'sampler': dict(type='DefaultSampler', shuffle=False)},
            val_cfg={},
            val_evaluator=dict(type='MeanScore'),
        )
    optimizer = dict(type='AdamW', lr=1e-3, weight_decay=0.05)
    flexible: dict[str, Any] = {}
    if strategy is not None:
        flexible = dict(strategy=dict(type=strategy), env_cfg=dict(dist_cfg=dict(backend='gloo')))
    if strategy == 'ResumableFSDPStrategy':
        # Not AdamW: without a GPU, torch saves its second average in place of both.
        optimizer = dict(type='SGD', lr=0.1, momentum=0.9, weight_decay=0.05)
        flexible['strategy'].update(
            model_wrapper=dict(
                device_id='cpu', use_orig_params=True, auto_wrap_policy='wrap_blocks'
            ),
            state_dict_cfg=dict(
                state_dict_type='FULL_STATE_DICT',
                state_dict_config=dict(type='FullStateDictConfig', rank0_only=True),
                optim_state_dict_config=dict(type='FullOptimStateDictConfig', rank0_only=True),
            ),
        )
    return Config(
        dict(
            model=dict(type='ReliabilityModel'),
            train_dataloader=loader,
            train_cfg=dict(by_epoch=by_epoch, val_interval=interval, **loop),
            optim_wrapper=dict(
                type='CPUAmpOptimWrapper' if amp else 'OptimWrapper',
                optimizer=optimizer,
                accumulative_counts=accumulate,
                paramwise_cfg=dict(norm_decay_mult=0.0),  # a group of each parameter
            ),
            param_scheduler=[
                dict(type='CosineAnnealingLR', T_max=ITERATIONS, by_epoch=False, eta_min=1e-5)
            ],
            default_hooks=dict(
                checkpoint={**hook, **checkpoint}, logger=dict(type='LoggerHook', interval=100)
            ),
            custom_hooks=[dict(type='WarmupEMAHook')] if average else [],
            randomness=dict(seed=1),
            log_level='WARNING',
            default_scope='mmengine',
            work_dir=str(work_dir),
            runner_type='ResumableRunner',
            processes=processes,
            **validation,
            **flexible,
        )
    )


def start_processes(cfg: Config) -> None:
    """Fork the other processes of a distributed training, which end with this one."""
    meeting = f'file://{cfg.work_dir}.{time.time_ns()}'
    rank, count = 0, cfg.processes
    for other in range(1, count):
        if os.fork() == 0:
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
            global _reports
            rank, _reports = other, -1
            break
    torch.distributed.init_process_group('gloo', meeting, rank=rank, world_size=count)
    os.environ['LOCAL_RANK'] = str(rank)
    cfg.launcher = 'pytorch'
    if 'strategy' not in cfg:
        cfg.model_wrapper_cfg = dict(type='MMDistributedDataParallel', device_ids=None)


def train(cfg: Config, *, resume: bool = False) -> Runner:
    """Train in this process, and in as many others as the config asks for."""
    torch.set_num_threads(1)
    if cfg.processes > 1:
        start_processes(cfg)
    register_backend('local', SlowBackend, prefixes='', force=True)
    cfg.resume = resume
    cfg.experiment_name = (
        f'{Path(cfg.work_dir).name}_{time.time_ns()}'  # mmengine reuses loggers by name
    )
    runner = RUNNERS.build(cfg)
    runner.train()
    return runner


class Process:
    """A forked process in a group of its own that runs a job; its output goes to ``log``.

    Args:
        job: What to run.
        log: File for its output.
    """

    def __init__(self, job: Callable[[], Any], log: Path) -> None:
        self._socket, other = socket.socketpair()
        self.pid = os.fork()
        if self.pid:
            other.close()
            return
        code = 1
        os.setpgid(0, 0)
        try:
            self._socket.close()
            global _reports
            _reports = other.fileno()
            output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(output, 1)
            os.dup2(output, 2)
            sys.stdout = sys.stderr = os.fdopen(output, 'w')
            signal.signal(signal.SIGINT, signal.default_int_handler)
            job()
            code = 0
        except SystemExit as error:
            code = int(error.code or 0)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def wait(self, event: bytes, count: int) -> bool:
        """Let it run to the ``count``-th report of an event and hold it there.

        False if it ends before.
        """
        while received := self._receive():
            count -= received == event
            if count == 0:
                return True
            self.go_on()
        return False

    def go_on(self) -> None:
        """Let it run on after :meth:`wait`."""
        with suppress(BrokenPipeError):  # it has ended
            self._socket.send(b'.')

    def finish(self) -> int:
        """Let it run to its end; its exit code, negative for a signal."""
        while self._receive():
            self.go_on()
        self._socket.close()
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send a signal; a kill to its data loader's workers too.

        One that starts at that moment would not see that its parent is gone, and stay.
        """
        send = os.killpg if number == signal.SIGKILL else os.kill
        send(self.pid, number)

    def _receive(self) -> bytes:
        try:
            return self._socket.recv(1)
        except ConnectionResetError:
            return b''


def final_state(work_dir: Path) -> dict[str, Any]:
    """Weights, averages, optimizer and schedule of the last checkpoint.

    The best score and its weights.
    """
    (last,) = (
        p for p in work_dir.glob('*.pth') if p.stem in (f'iter_{ITERATIONS}', f'epoch_{EPOCHS}')
    )
    content = torch.load(last, weights_only=False)
    parts = ('state_dict', 'ema_state_dict', 'optimizer', 'param_schedulers')
    state = {part: content[part] for part in parts if part in content}
    state['best_score'] = content['message_hub']['runtime_info'].get('best_score')
    for best in work_dir.glob('best_*.pth'):
        state[best.name] = torch.load(best, weights_only=False)['state_dict']
    return state
