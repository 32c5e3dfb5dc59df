"""Choices for a config from checked data; only given weights are read."""
