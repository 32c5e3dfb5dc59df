# PyramidCPVT-Tiny: as Small, drop path 0.1 (PVT-Tiny; Twins has no Tiny).
_base_ = './pyramid-cpvt-s_8xb128_in1k.py'
model = dict(backbone=dict(arch='tiny', drop_path_rate=0.1))
