# Twins' resizing at 3x, after DETR's: half of the images to a shorter side of 480 to 800 px, half
# first to 400, 500 or 600 px and cropped to 384 to 600 px a side. Longer side at most 1333 px. A
# leaf puts it into its train_pipeline.
resize = dict(
    type='RandomChoiceResize',
    scales=[(1333, side) for side in range(480, 801, 32)],
    keep_ratio=True,
)
detr_resize = dict(
    type='RandomChoice',
    transforms=[
        [resize],
        [
            dict(
                type='RandomChoiceResize',
                scales=[(1333, 400), (1333, 500), (1333, 600)],
                keep_ratio=True,
            ),
            dict(
                type='RandomCrop',
                crop_type='absolute_range',
                crop_size=(384, 600),
                allow_negative_crop=True,
            ),
            resize,
        ],
    ],
)
