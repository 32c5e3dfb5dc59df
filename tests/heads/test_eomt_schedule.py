"""HeadFirstPolyLR in mmengine's runner, against the formula of EoMT's authors."""

import pytest
import torch
from mmengine.hooks import Hook
from mmengine.model import BaseModel
from mmengine.runner import Runner
from tiny import COLUMN, build

END, HEAD_STEPS, TRUNK_STEPS, POWER = 12, 3, 4, 0.9
RATE, DECAY = 0.01, 0.8


def by_formula(step, *, is_trunk):
    """Factor of a rate at a step. Both decay from the end of their own warm-up."""
    start, warmup = (HEAD_STEPS, TRUNK_STEPS) if is_trunk else (0, HEAD_STEPS)
    if step < start:
        return 0.0
    if step < start + warmup:
        return (step - start) / warmup
    return (1 - (step - start - warmup) / (END - start - warmup)) ** POWER


class Toy(BaseModel):
    """A trunk and a head."""

    def __init__(self):
        super().__init__()
        self.backbone = build(dict(type='CPVT', arch=COLUMN, out_type='cls_token'))
        self.head = torch.nn.Linear(COLUMN['embed_dims'], 1)

    def forward(self, images, mode='tensor'):
        (features,) = self.backbone(images)
        return dict(loss=self.head(features).square().mean())


class Rates(Hook):
    """The rates of each step, by parameter."""

    def __init__(self):
        self.seen = {}

    def before_train_iter(self, runner, batch_idx, data_batch=None):
        groups = runner.optim_wrapper.optimizer.param_groups
        named = {group['param_name']: group['lr'] for group in groups if 'param_name' in group}
        self.seen[runner.iter] = named | dict(base=runner.optim_wrapper.get_lr()['base_lr'][0])


def run(folder, *, until=END, resume=False):
    """Rates of a training that ends at a step, and its weights."""
    torch.manual_seed(0)
    rates = Rates()
    schedule = dict(type='HeadFirstPolyLR', by_epoch=False, end=END, power=POWER)
    runner = Runner(
        model=Toy(),
        work_dir=str(folder),
        train_dataloader=dict(
            dataset=[dict(images=torch.full((3, 32, 32), k / 4)) for k in range(4)],
            sampler=dict(type='InfiniteSampler', shuffle=False),
            batch_size=2,
            collate_fn=dict(type='default_collate'),
        ),
        train_cfg=dict(by_epoch=False, max_iters=until),
        optim_wrapper=dict(
            constructor='LayerDecayOptimWrapperConstructor',
            optimizer=dict(type='AdamW', lr=RATE),
            paramwise_cfg=dict(layer_decay_rate=DECAY),
        ),
        param_scheduler=dict(schedule, head_steps=HEAD_STEPS, trunk_steps=TRUNK_STEPS),
        default_hooks=dict(checkpoint=dict(type='CheckpointHook', interval=5, by_epoch=False)),
        custom_hooks=[rates],
        resume=resume,
        experiment_name=folder.name + str(until),
    )
    runner.train()
    return rates.seen, runner.model.state_dict()


def test_rates_of_a_training_are_the_authors(tmp_path):
    seen, weights = run(tmp_path / 'whole')
    assert [*seen] == [*range(END)]
    depths = COLUMN['depth']
    for step, rates in seen.items():
        trunk, head = (by_formula(step, is_trunk=is_trunk) for is_trunk in (True, False))
        assert rates['head.weight'] == rates['base'] == pytest.approx(RATE * head)
        last = f'backbone.blocks.{depths - 1}.mlp.fc1.weight'
        assert rates[last] == pytest.approx(RATE * DECAY * trunk)
        first = rates['backbone.blocks.0.mlp.fc1.weight']
        assert first == pytest.approx(RATE * DECAY**depths * trunk)
    (left,) = {rates['head.weight'] for step, rates in seen.items() if step == END - 1}
    assert 0 < left < 0.2 * RATE

    run(tmp_path / 'resumed', until=5)
    again, resumed = run(tmp_path / 'resumed', resume=True)
    assert [*again] == [*range(5, END)]
    assert all(again[step] == seen[step] for step in again)
    assert all(torch.equal(resumed[key], value) for key, value in weights.items())
