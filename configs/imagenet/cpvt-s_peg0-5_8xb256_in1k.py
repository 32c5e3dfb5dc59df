# CPVT-S "0-5" (marked ‡ in the paper): one PEG after each of the first five blocks.
_base_ = './cpvt-s_8xb256_in1k.py'
model = dict(backbone=dict(position=dict(after_blocks=(0, 1, 2, 3, 4))))
