"""mmdet imports here: cpvt_backbones provides the operators of mmcv."""

import cpvt_backbones  # noqa: F401
