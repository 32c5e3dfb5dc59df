"""Classifiers that mmpretrain lacks. They need it: a config that uses one lists this module in ``custom_imports``."""

from .hard_distillation import DistillationHead, HardDistillation

__all__ = ['DistillationHead', 'HardDistillation']
