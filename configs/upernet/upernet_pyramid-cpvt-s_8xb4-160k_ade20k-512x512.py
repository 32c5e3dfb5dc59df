# Twins' recipe for S: 8 GPUs * 4 crops = 32, by the authors' config and log, and by mmsegmentation.
# The rate is that of 16 crops.
_base_ = './upernet_pyramid-cpvt-s_8xb2-160k_ade20k-512x512.py'
train_dataloader = dict(batch_size=4)
auto_scale_lr = dict(base_batch_size=32)
