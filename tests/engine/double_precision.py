"""Imported by a config, this trains in fp64: rounding then explains no difference that a test could
notice.
"""

import torch

torch.set_default_dtype(torch.float64)
