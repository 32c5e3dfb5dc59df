"""The console command ``cpvt``: one module a command, which parses, calls the package and reports.

It stands beside ``cpvt_backbones``, not in it: importing any part of that package imports PyTorch
and mmengine, which takes seconds, and a command reads and checks its arguments first.
"""
