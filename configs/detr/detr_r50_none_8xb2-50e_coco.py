# No position encoding in the encoder.
_base_ = './detr_r50_8xb2-50e_coco.py'
model = dict(type='DETRWithPEG')
