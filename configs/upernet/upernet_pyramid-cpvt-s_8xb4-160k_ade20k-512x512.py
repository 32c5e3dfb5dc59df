# The batch that mmsegmentation's config and the authors' log of S have: 8 GPUs * 4 crops = 32, at
# the same rate.
_base_ = './upernet_pyramid-cpvt-s_8xb2-160k_ade20k-512x512.py'
train_dataloader = dict(batch_size=4)
auto_scale_lr = dict(base_batch_size=32)
