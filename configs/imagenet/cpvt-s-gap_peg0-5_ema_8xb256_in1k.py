# CPVT-S-GAP‡ with an exponential moving average of its weights.
_base_ = ['./cpvt-s-gap_peg0-5_8xb256_in1k.py', '../_base_/options/ema.py']
