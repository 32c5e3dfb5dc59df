# EoMT-L with DINOv2's trunk on ADE20K at 512 px, from its authors.
_base_ = '../../eomt/eomt_cpvt-l-dinov2_8xb2-31e_ade20k-512x512.py'
