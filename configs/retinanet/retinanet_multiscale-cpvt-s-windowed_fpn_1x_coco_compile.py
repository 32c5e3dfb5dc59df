_base_ = ['./retinanet_multiscale-cpvt-s-windowed_fpn_1x_coco.py', '../_base_/options/compile.py']
