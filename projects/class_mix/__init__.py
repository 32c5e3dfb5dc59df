"""ClassMix for mmseg: the pixels of half of another image's classes are put on each image."""

from .transform import ClassMix

__all__ = ['ClassMix']
