# The same with a learned table, laid out for the training crops; a classifier's is resized to it
# (bicubic, as DeiT's).
_base_ = './semantic-fpn_peg_camvid.py'
model = dict(backbone=dict(img_size=(256, 320), position=dict(_delete_=True, type='Learned')))
