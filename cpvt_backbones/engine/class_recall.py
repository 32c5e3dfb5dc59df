"""Recall of each class of a classifier, by the name of the class.

It needs mmpretrain, so ``import cpvt_backbones`` does not import it; ``lazy_registration`` does.
"""

from typing import Any

from mmengine.registry import METRICS
from mmpretrain.evaluation import SingleLabelMetric

from cpvt_backbones.checkpoints import classes_of


@METRICS.register_module(force=True)  # replaces the function of .lazy_registration
class RecallByClass(SingleLabelMetric):
    """mmpretrain's recall with one metric per class, such as ``recall/cat``, in percent.

    ``SingleLabelMetric(average=None)`` gives a list without names. Classes without images in the
    test set are left out.

    Args:
        options: Arguments of ``SingleLabelMetric`` except ``items`` and ``average``.

    Examples:
        ```python
        test_evaluator = [
            dict(type='Accuracy', topk=(1,)),
            dict(type='RecallByClass'),
        ]
        ```
    """

    default_prefix = 'recall'

    def __init__(self, **options: Any) -> None:
        super().__init__(items=('recall', 'support'), average=None, **options)

    def compute_metrics(self, results: list[Any]) -> dict[str, float]:
        """Compute the recall of each class in the results, by name, or by number without names."""
        found = super().compute_metrics(results)
        recalls, supports = found['recall_classwise'], found['support_classwise']
        names = classes_of(self.dataset_meta) or [str(label) for label in range(len(recalls))]
        rows = zip(names, recalls, supports, strict=True)
        return {name: recall for name, recall, support in rows if support}
