# The paper's default: one PEG after block 0.
_base_ = '../_base_/classifier.py'
