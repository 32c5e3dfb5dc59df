"""Files of weights: where they are, what is in them, and how they are written.

Nothing in a file is imported or run, and nothing here knows a model.
"""
