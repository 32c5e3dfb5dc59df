# Moving average of the weights, which is what is saved; DeiT's decay is 0.99996. It warms up.
custom_hooks = [dict(type='WarmupEMAHook', momentum=4e-5)]
