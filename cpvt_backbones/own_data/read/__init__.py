"""Readers of labels and images, with one file per format."""
