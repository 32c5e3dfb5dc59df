# Parts that both segmentors share. Training batches are padded to their largest image, and images
# of a test to whole cells of the last map, because mmseg resizes that map to the image. mmseg's own
# bases are not inherited: without this package imported before, mmengine finds `mmseg::` only in a
# distribution called mmsegmentation, and the maintained fork has another name.
model = dict(
    type='EncoderDecoder',
    data_preprocessor=dict(
        type='SegDataPreProcessor',
        mean=[123.675, 116.28, 103.53],
        std=[58.395, 57.12, 57.375],
        bgr_to_rgb=True,
        pad_val=0,
        seg_pad_val=255,
        size_divisor=1,
        test_cfg=dict(size_divisor=32),
    ),
    train_cfg=dict(),
    test_cfg=dict(mode='whole'),
)
