# PyramidCPVT-Base (Twins-PCPVT-B): as Small, drop path 0.3.
_base_ = './pyramid-cpvt-s_8xb128_in1k.py'
model = dict(backbone=dict(arch='base', drop_path_rate=0.3))
