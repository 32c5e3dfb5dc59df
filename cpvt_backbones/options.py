"""What command lines offer, and their defaults; importing it imports nothing."""

BACKBONES = ('CPVT', 'MultiScaleCPVT', 'PyramidCPVT')
TARGETS = ('cpvt', 'timm', 'mmseg', 'mmpretrain')  # namings of weights
AMP_DTYPES = ('float16', 'bfloat16')
DTYPES = ('auto', 'float32', *AMP_DTYPES)  # of predictions

MAX_PIXELS, TILE_SIZE, OVERLAP = 2048 * 2048, 1024, 256
READ_LIMIT = 178_956_970  # pixels; Pillow's default threshold for the error of a decompression bomb

EXPORT_FORMATS = {'onnx': '.onnx', 'torch_export': '.pt2', 'aoti': '.pt2'}
EXPORTED_SUFFIXES = ('.onnx', '.pt2')
RUNTIMES = ('onnxruntime', 'openvino', 'openvino-bfloat16')  # of .onnx files
OPSET = 21  # of ONNX; the last before RoiAlign(22), which onnxruntime lacks
VERIFIED_SIZES = ((17, 33), (224, 224), (333, 517))
"""Heights and widths in px: below one patch row, the usual size, and one that no stride divides."""
VERIFIED_BATCHES = (1, 3)
