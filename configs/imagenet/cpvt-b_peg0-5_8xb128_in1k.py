# CPVT-B "0-5" (marked ‡ in the paper): one PEG after each of the first five blocks.
_base_ = './cpvt-b_8xb128_in1k.py'
model = dict(backbone=dict(position=dict(after_blocks=(0, 1, 2, 3, 4))))
