# The sine-cosine encoding of 224 px, interpolated at other sizes. It is the same model at 224 px.
_base_ = '../deit-t_sincos_8xb256_in1k.py'
model = dict(backbone=dict(position=dict(resize='interpolate')))
