"""Which file a work directory stands for, with files of several trainings in it."""

import os
import shutil
import time

import pytest
import torch
from mmengine.model import BaseModel
from mmengine.registry import METRICS, MODELS
from mmengine.runner import Runner

from cpvt_backbones.checkpoints import CheckpointError, locate_checkpoint, newest_checkpoint
from cpvt_backbones.checkpoints.reading import finding, sources


@pytest.fixture
def said(monkeypatch):
    lines = []
    monkeypatch.setattr(finding, 'warn_once', lines.append)
    return lines


def save(path, *, iteration=1, experiment='', time='', bests=None, age=0, **meta):
    """A checkpoint as mmengine writes it, ``age`` seconds old."""
    meta |= dict(iter=iteration)
    meta |= {
        key: value for key, value in dict(experiment_name=experiment, time=time).items() if value
    }
    content = dict(state_dict=dict(w=torch.zeros(1)), meta=meta)
    if bests is not None:
        info = {f'best_ckpt{key}': f'/elsewhere/{name}' for key, name in bests.items()}
        content['message_hub'] = dict(runtime_info=info)
    torch.save(content, path)
    os.utime(path, (1e9 - age, 1e9 - age))


def test_the_best_file_of_an_earlier_training_is_named(tmp_path, said):
    save(tmp_path / 'best_coco_bbox_mAP_iter_10.pth', iteration=10, experiment='A', age=9)
    save(tmp_path / 'iter_5.pth', iteration=5, experiment='B')
    (tmp_path / 'last_checkpoint').write_text(str(tmp_path / 'iter_5.pth'))
    assert locate_checkpoint(tmp_path).name == 'iter_5.pth'
    (line,) = said
    assert 'best_coco_bbox_mAP_iter_10.pth of an earlier' in line
    assert line.endswith('iter_5.pth is taken')
    save(tmp_path / 'best_coco_bbox_mAP_iter_6.pth', iteration=6, experiment='B')
    assert locate_checkpoint(tmp_path).name == 'best_coco_bbox_mAP_iter_6.pth'
    assert 'iter_10.pth' in said[-1]


def test_times_in_the_files_outlast_a_copy(tmp_path, said):
    """A copied folder has other times of files."""
    save(tmp_path / 'best_x_iter_9.pth', iteration=9, experiment='A', time='20260101_100000')
    save(tmp_path / 'iter_5.pth', iteration=5, experiment='B', time='20260102_100000', age=50)
    assert locate_checkpoint(tmp_path).name == 'iter_5.pth'
    assert len(said) == 1


@pytest.mark.parametrize('resumed', [False, True])
def test_two_best_files_after_a_kill(resumed, tmp_path, said):
    """Killed after the new one was written, before the previous one was deleted."""
    save(tmp_path / 'best_x_epoch_1.pth', iteration=10, experiment='A', age=40)
    save(
        tmp_path / 'epoch_2.pth',
        iteration=20,
        experiment='A',
        age=30,
        bests={'': 'best_x_epoch_1.pth'},
    )
    save(tmp_path / 'best_x_epoch_2.pth', iteration=20, experiment='A', age=20)
    expected = 'best_x_epoch_2.pth'
    if resumed:  # under the name of another run; the third is better, the fourth is not
        (tmp_path / expected).unlink()
        expected = 'best_x_epoch_3.pth'
        save(tmp_path / expected, iteration=30, experiment='B', age=10)
        save(tmp_path / 'epoch_4.pth', iteration=40, experiment='B', bests={'': expected})
    assert locate_checkpoint(tmp_path).name == expected
    (line,) = said
    assert 'best_x_epoch_1.pth' in line


def test_a_training_that_goes_on_keeps_its_best_file(tmp_path, said):
    save(tmp_path / 'best_x_epoch_2.pth', iteration=20, experiment='A', age=20)
    save(tmp_path / 'epoch_4.pth', iteration=40, experiment='B', bests={'': 'best_x_epoch_2.pth'})
    assert locate_checkpoint(tmp_path).name == 'best_x_epoch_2.pth'
    # Better, and validated after the newest checkpoint was written.
    save(tmp_path / 'best_x_epoch_5.pth', iteration=50, experiment='C')
    (tmp_path / 'best_x_epoch_2.pth').unlink()
    assert locate_checkpoint(tmp_path).name == 'best_x_epoch_5.pth'
    assert not said


def test_several_metrics_are_named(tmp_path, said):
    for name in ('a', 'b'):
        save(tmp_path / f'best_{name}_iter_3.pth', iteration=3, experiment='A')
    save(tmp_path / 'iter_4.pth', iteration=4, experiment='A')
    assert locate_checkpoint(tmp_path).name == 'iter_4.pth'
    assert 'a best checkpoint for each of a, b; iter_4.pth is taken' in said[0]


def test_best_files_alone_and_damaged_neighbours(tmp_path, said):
    save(tmp_path / 'best_x_iter_3.pth', iteration=3, experiment='A', age=9)
    save(tmp_path / 'best_x_iter_2.pth', iteration=2, experiment='B')
    assert locate_checkpoint(tmp_path).name == 'best_x_iter_2.pth'
    assert 'best_x_iter_3.pth' in said[0]
    (tmp_path / 'iter_5.pth').write_bytes(b'damaged')
    assert locate_checkpoint(tmp_path).name == 'best_x_iter_2.pth'
    for file in tmp_path.glob('best_*'):
        file.unlink()
    with (
        pytest.warns(UserWarning, match=r'iter_5\.pth is skipped'),
        pytest.raises(CheckpointError, match='none of the checkpoints'),
    ):
        locate_checkpoint(tmp_path)


def test_the_line_comes_once(tmp_path, monkeypatch):
    lines = []
    monkeypatch.setattr(sources, 'print_log', lambda text, *_: lines.append(text))
    save(tmp_path / 'best_x_iter_9.pth', iteration=9, experiment='A', age=9)
    save(tmp_path / 'iter_5.pth', iteration=5, experiment='B')
    for _ in range(3):
        locate_checkpoint(tmp_path)
    assert len(lines) == 1 and '\n' not in lines[0]


@METRICS.register_module()
class Listed:
    """Scores in a list, one for each validation."""

    def __init__(self, scores):
        self.scores = iter(scores)
        self.dataset_meta = None

    def process(self, *_, **__):
        pass

    def evaluate(self, size):
        return dict(score=next(self.scores))


@MODELS.register_module()
class Weight(BaseModel):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.ones(1))

    def forward(self, inputs, mode='tensor', **_):
        return dict(loss=self.w.sum()) if mode == 'loss' else [self.w]


def run(work_dir, scores, *, save_best='score', resume=False):
    """A training of mmengine's own runner and hook, one iteration an epoch."""
    loader = dict(dataset=[torch.zeros(1)], sampler=dict(type='DefaultSampler'), batch_size=1)
    hook = dict(type='CheckpointHook', interval=1, max_keep_ckpts=1)
    hook |= dict(save_best=save_best, rule='greater') if save_best else {}
    Runner(
        Weight(),
        str(work_dir),
        train_dataloader=loader,
        val_dataloader=loader,
        val_evaluator=dict(type='Listed', scores=scores),
        optim_wrapper=dict(optimizer=dict(type='SGD', lr=0.1)),
        train_cfg=dict(by_epoch=True, max_epochs=len(scores) + 2 * resume, val_interval=1),
        val_cfg=dict(),
        default_hooks=dict(checkpoint=hook),
        resume=resume,
        experiment_name=f'run_{len([*work_dir.glob("2*/")])}',
        log_level='ERROR',
    ).train()


def test_trainings_of_mmengine(tmp_path, said, monkeypatch):
    """The second training begins anew in the folder of the first; a third goes on from it."""
    clock = iter(range(20260101_000000, 20260102_000000))
    monkeypatch.setattr(time, 'strftime', lambda *_: str(next(clock)))
    folder = tmp_path / 'run'
    folder.mkdir()
    run(folder, [1, 2, 3, 0])
    assert locate_checkpoint(folder).name == 'best_score_epoch_3.pth'
    assert not said
    stale = tmp_path / 'stale.pth'
    shutil.copy2(folder / 'best_score_epoch_3.pth', stale)
    run(folder, [5, 4])
    assert newest_checkpoint(folder).name == 'epoch_2.pth'  # beside epoch_4.pth of the first
    shutil.copy2(stale, folder / 'best_score_epoch_3.pth')
    assert locate_checkpoint(folder).name == 'best_score_epoch_1.pth'
    assert 'best_score_epoch_3.pth' in said[-1]
    run(folder, [3, 4], resume=True)
    assert locate_checkpoint(folder).name == 'best_score_epoch_1.pth'
