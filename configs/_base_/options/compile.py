# torch.compile. Images of many sizes: dynamic shapes, so that a new size does not compile anew.
compile = dict(dynamic=True)
