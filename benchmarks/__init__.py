"""Speed and memory of the backbones beside their peers; run ``benchmarks/speed.py`` from a clone. Not installed."""
