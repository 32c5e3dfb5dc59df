"""Trainings of a few iterations in this process, and hooks that note, stop or spoil them."""

import torch
from mmengine.evaluator import BaseMetric, Evaluator
from mmengine.hooks import Hook
from mmengine.model import BaseModel
from torch import nn

from cpvt_backbones.engine import DurableCheckpointHook, ResumableRunner

SAMPLES = 16


class Regression(BaseModel):
    def __init__(self, layer=None):
        super().__init__()
        self.layer = layer or nn.Linear(3, 1)

    def forward(self, inputs, data_samples=None, mode='loss'):
        loss = self.layer(torch.stack(inputs)).square().mean()
        return dict(loss=loss) if mode == 'loss' else [loss]


class Numbered(torch.utils.data.Dataset):
    """Samples that note when they are read; the numbers are those of the shuffled order."""

    def __init__(self):
        self.read = []

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        self.read.append(index)
        image = torch.randn(3, generator=torch.Generator().manual_seed(index))
        return dict(inputs=image, data_samples=Sample(f'photos/{index}.jpg'))


class Sample:
    def __init__(self, path):
        self.img_path = path


class Score(BaseMetric):
    def process(self, data_batch, data_samples):
        self.results.append(float(data_samples[0]))

    def compute_metrics(self, results):
        return dict(score=-sum(results))


class Rates(Hook):
    """Notes the learning rate of each iteration."""

    def __init__(self):
        self.rates = {}

    def before_train_iter(self, runner, batch_idx, data_batch=None):
        self.rates[runner.iter] = runner.optim_wrapper.get_lr()['lr'][0]


class Stop(Exception):
    pass


class StopAfter(Hook):
    """Ends the process of a training after so many iterations, without a checkpoint."""

    priority = 'LOWEST'

    def __init__(self, iteration):
        self.iteration = iteration

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        if runner.iter + 1 == self.iteration:
            raise Stop


class Damage(Hook):
    """Sets a weight to a value before or after an iteration."""

    def __init__(self, value, *, before=None, after=None):
        self.value, self.before, self.after = value, before, after

    def _set(self, runner):
        with torch.no_grad():
            runner.model.layer.weight[0, 0] = self.value

    def before_train_iter(self, runner, batch_idx, data_batch=None):
        if runner.iter + 1 == self.before:
            self._set(runner)

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        if runner.iter + 1 == self.after:
            self._set(runner)


_runs = 0


def run(
    folder,
    *,
    epochs=None,
    iterations=None,
    batch_size=2,
    schedule=(),
    optimizer=None,
    optim_wrapper=None,
    hooks=(),
    checkpoint=None,
    hook_type=DurableCheckpointHook,
    validate=False,
    seed=0,
    kind=ResumableRunner,
    model=None,
    **options,
):
    """Train in this process; the runner, whose ``read`` and ``rates`` tell what it did."""
    global _runs
    _runs += 1
    rates = Rates()
    loader = dict(batch_size=batch_size, dataset=Numbered())
    loader['sampler'] = dict(type='DefaultSampler' if epochs else 'InfiniteSampler', shuffle=True)
    loader['collate_fn'] = dict(type='pseudo_collate')
    if validate:
        in_order = dict(type='DefaultSampler', shuffle=False)
        options['val_dataloader'] = dict(loader, batch_size=4, dataset=Numbered(), sampler=in_order)
        options |= dict(val_cfg={}, val_evaluator=Evaluator(Score()))
    by_epochs = dict(by_epoch=True, max_epochs=epochs)
    by_iterations = dict(by_epoch=False, max_iters=iterations)
    hook = dict(interval=1 if epochs else 10, by_epoch=bool(epochs)) | (checkpoint or {})
    optimizer = optimizer or dict(type='SGD', lr=0.1, momentum=0.9)
    runner = kind(
        model=model or Regression(),
        work_dir=str(folder),
        train_dataloader=loader,
        train_cfg=by_epochs if epochs else by_iterations,
        optim_wrapper=dict(optimizer=optimizer, **(optim_wrapper or {})),
        param_scheduler=[dict(one) for one in schedule] or None,
        default_hooks=dict(checkpoint=hook_type(**hook)),
        custom_hooks=[rates, *hooks],
        randomness=dict(seed=seed),
        default_scope='mmengine',
        log_level='WARNING',
        experiment_name=f'resuming_{_runs}',
        **options,
    )
    runner.rates = rates.rates
    try:
        runner.train()
    except Stop:
        pass
    runner.read = runner.train_dataloader.dataset.read
    return runner
