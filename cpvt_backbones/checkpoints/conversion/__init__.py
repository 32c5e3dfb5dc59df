"""Weights by their names and shapes: whose they are, and what they are called in this package.

Nothing here opens a file.
"""
