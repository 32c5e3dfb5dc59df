"""Choices from checked data: nothing is read or written, but weights that are given."""
