# Data, schedule and weights of a detector or segmentor that trains by iterations. cpvt make-config
# copies the files of this folder beside recipe.py, the model of a task, and data.json, the names,
# paths and numbers of the data.
_base_ = ['./recipe.py', './data.json']
own = _base_.own_data
model = own.model
load_from = own.load_from
optim_wrapper = own.optim_wrapper
max_iters = own.max_iters
train_cfg = dict(max_iters=max_iters, val_interval=max_iters)
# At least five checkpoints, from which an interrupted training goes on, and ten lines of the log.
default_hooks = dict(
    checkpoint=dict(interval=min(500, max(1, max_iters // 5)), **own.checkpoint),
    logger=dict(interval=min(50, max(1, max_iters // 10))),
)
least = own.least_rate
warmup = max_iters // 10 + 1
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=warmup),
    dict(type='CosineAnnealingLR', eta_min=least, by_epoch=False, begin=warmup, end=max_iters),
][:max_iters]  # one iteration is a warm-up only
del own  # the values are in own_data
