# COCO 2017 with masks, laid out as for detection. No tta_pipeline: mmdet merges boxes only.
_base_ = 'mmdet::_base_/datasets/coco_instance.py'
