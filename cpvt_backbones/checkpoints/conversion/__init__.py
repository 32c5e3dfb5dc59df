"""Recognition of weights by names and shapes, and their conversion to this package's names.

Nothing here opens a file.
"""
