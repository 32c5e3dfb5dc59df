# EoMT-L with DINOv2's trunk on COCO's objects at 640 px, from its authors.
_base_ = '../../eomt/eomt_cpvt-l-dinov2_8xb2-12e_coco-instance-640x640.py'
