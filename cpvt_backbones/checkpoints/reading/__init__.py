"""Finding, reading and writing files of weights.

Nothing in a file is imported or run, and nothing here depends on a model.
"""
