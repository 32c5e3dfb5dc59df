"""Train the shipped classifier with the features of a CNN."""
