# mmdet's runtime for a training that counts iterations.
_base_ = './mmdet.py'
default_hooks = dict(checkpoint=dict(by_epoch=False, interval=2000))
log_processor = dict(by_epoch=False)
