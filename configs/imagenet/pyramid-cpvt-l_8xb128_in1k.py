# PyramidCPVT-Large (Twins-PCPVT-L): as Small, drop path 0.5.
_base_ = './pyramid-cpvt-s_8xb128_in1k.py'
model = dict(backbone=dict(arch='large', drop_path_rate=0.5))
