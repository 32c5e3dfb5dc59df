"""Recall of each class, by name, from predictions as mmpretrain hands them to its metrics."""

import pytest
import torch
from mmengine.evaluator import Evaluator

import cpvt_backbones  # noqa: F401  registers the metric

pytest.importorskip('mmpretrain')
from mmpretrain.structures import DataSample

# Class by class of the labels: 2 of 3, 0 of 1, none in the test set, 1 of 1.
PREDICTED, LABELS = (0, 0, 1, 0, 3), (0, 0, 0, 1, 3)


def evaluate(metric, classes):
    evaluator = Evaluator(metric)
    evaluator.dataset_meta = {} if classes is None else dict(classes=classes)
    samples = []
    for predicted, label in zip(PREDICTED, LABELS, strict=True):
        scores = torch.eye(4)[predicted]
        samples.append(DataSample().set_pred_score(scores).set_gt_label(label))
    evaluator.process(samples)
    return evaluator.evaluate(len(samples))


@pytest.mark.parametrize('classes', [('cat', 'dog', 'cow', 'hen'), ['a b', 'é', '=1', '%s'], None])
def test_recall_has_the_names_of_the_classes(classes):
    names = classes or ['0', '1', '2', '3']
    found = evaluate(dict(type='RecallByClass'), classes)
    expected = {0: 200 / 3, 1: 0, 3: 100}  # without the third, which has no image
    assert list(found) == [f'recall/{names[label]}' for label in expected]
    assert list(found.values()) == pytest.approx(list(expected.values()), rel=1e-6)


def test_values_are_those_of_mmpretrain():
    theirs = evaluate(
        dict(type='mmpretrain.SingleLabelMetric', items=['recall'], average=None), None
    )
    ours = evaluate(dict(type='RecallByClass'), None)
    listed = theirs['single-label/recall_classwise']
    assert [listed[label] for label in (0, 1, 3)] == list(ours.values())
