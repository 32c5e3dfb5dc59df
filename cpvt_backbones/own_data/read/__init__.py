"""Readers of labels and images, one file a form."""
