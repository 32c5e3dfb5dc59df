"""Heads of the toolboxes, and what they train on. Importing this package imports no toolbox."""
