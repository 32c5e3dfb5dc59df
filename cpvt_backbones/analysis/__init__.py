"""Measurements on a model."""
