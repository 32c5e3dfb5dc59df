# torch.compile. Images of many sizes: dynamic shapes, so that a new size does not compile anew.
# Windows have a few graphs: for sizes that pad rows, columns, both or neither.
# Layouts stay as the model has them (channels_last where it pays): torch 2.11 fails at choosing
# them for a size that it does not know.
compile = dict(dynamic=True, options=dict(layout_optimization=False))
