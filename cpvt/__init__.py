"""The console command ``cpvt``, with one module per command: parse, call the package, report.

It is not part of ``cpvt_backbones``, because importing that package imports PyTorch and mmengine,
which takes seconds. Commands read and check their arguments before that.
"""
