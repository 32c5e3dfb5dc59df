# Exponential moving average of the weights, which is what is evaluated and saved; DeiT's decay is 0.99996.
custom_hooks = [dict(type='EMAHook', momentum=4e-5, priority='ABOVE_NORMAL')]
