"""Classifiers that mmpretrain lacks. Needs mmpretrain: a config that uses one lists this module in ``custom_imports``."""

from .hard_distillation import DistillationHead, HardDistillation

__all__ = ['DistillationHead', 'HardDistillation']
