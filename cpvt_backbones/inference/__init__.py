"""Prediction at any resolution."""

from .inferencer import Inferencer

__all__ = ['Inferencer']
