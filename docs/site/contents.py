"""Contents of the reference: its pages, the names on each, and the guides that use them."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Page:
    """Title of a page, and its entries in their order.

    ``names`` are in the index of names, ``helpers`` stand below a heading of their own.
    """

    title: str
    names: str
    helpers: str = ''


# The pages of each folder of the package, by file. The first one has the file's name of the folder,
# introduces it, and gets the names that no page lists.
PAGES = {
    'backbones': {
        'backbones': Page('Backbones (API)', 'list_archs build_with_peg'),
        'pyramid_cpvt': Page('PyramidCPVT', 'PyramidCPVT'),
        'multi_scale_cpvt': Page('MultiScaleCPVT', 'MultiScaleCPVT'),
        'cpvt': Page('CPVT', 'CPVT'),
        'backbone': Page('Methods of all backbones', 'Backbone'),
    },
    'layers': {
        'layers': Page(
            'Layers (API)',
            'PatchEmbed Block MLP',
            'DropPath LayerScale ceil_div group_by_shape map_to_tokens pad_to_multiple'
            ' prepend_tokens tokens_to_map',
        ),
        'peg': Page('PEG', 'PEG PEGPosition'),
        'encodings': Page(
            'Tables, sines and RoPE', 'LearnedTable SinCos Relative DecomposedRelative RoPE'
        ),
        'own_encoding': Page(
            'An encoding of your own',
            'PositionEncoding register_position Stage',
            'build_positions',
        ),
        'attention': Page(
            'Attention', 'Attention WindowAttention SpatialReductionAttention', 'AxialBias'
        ),
    },
    'checkpoints': {
        'checkpoints': Page(
            'Checkpoints (API)',
            'load_weights load_checkpoint ConversionReport CheckpointError',
            'check_loaded naming_file unwrap weights_in',
        ),
        'conversion': Page(
            'Conversion of weights',
            'convert_state_dict export_state_dict',
            'Architecture public_backbone named_backbone recognise_backbone stored_config'
            ' classes_of',
        ),
        'checkpoint_files': Page(
            'Files of weights',
            'read_checkpoint locate_checkpoint',
            'newest_checkpoint parse_json read_json similar_timm_names atomic_write'
            ' check_destination flush_to_disk lock_file write_checkpoint',
        ),
    },
    'inference': {
        'inference': Page('Inference (API)', 'Inferencer Result'),
        'folders': Page(
            'Images and folders',
            'predict_to_folder Summary merge_shards find_images read_image ImageError',
            'image_size',
        ),
        'predictors': Page(
            'Configs and channels',
            'read_config ValueRange',
            'Predictor ToolboxPredictor reduce_precision GoodSizes',
        ),
    },
    'export': {
        'export': Page('Export (API)', 'export ExportedModel'),
        'verification': Page(
            'Verification of an export',
            'verify Comparison',
            'features_of finds_something reference_of',
        ),
        'graphs': Page(
            'Graphs for other runtimes',
            'graph_of',
            'Detections TwoStageDetections ClassMaps ExportGraph Features Scores',
        ),
    },
    'weights': {
        'weights': Page(
            'Models by name (API)',
            'published_weights shipped_weights find_shipped',
            'PublishedWeights ShippedWeights named_models sha256_of repository_file shipped_file'
            ' similar_names',
        ),
    },
    'engine': {
        'engine': Page(
            'Training (API)',
            'LayerDecayOptimWrapperConstructor DurableCheckpointHook TrainingCheckHook'
            ' WarmupEMAHook PredictBySizeHook predict_by_size',
            'defer NotFiniteError',
        ),
        'preprocessors': Page(
            'Padded batches and many channels',
            'ValidSizesDetDataPreprocessor ValidSizesSegDataPreProcessor'
            ' ValidSizesClsDataPreprocessor ValidSizes LoadRange LoadClassMap',
        ),
        'distillation': Page(
            'Distillation and DETR', 'DistillationHead HardDistillation DETRWithPEG'
        ),
        'training_data': Page(
            'Decoded images and sharding',
            '',
            'DecodedDataset BatchRandomResizedCrop CPUAmpOptimWrapper ResumableFSDPStrategy'
            ' wrap_blocks',
        ),
    },
    'analysis': {
        'analysis': Page(
            'Analysis (API)',
            'sweep good_sizes',
            'ForwardMeter SweepModel SweepRow fingerprint read_rows write_rows main_metric TestSize'
            ' scale_test_images',
        ),
        'costs': Page(
            'Costs',
            'complexity_against_size',
            'ComplexityRow build_model explicit_attention',
        ),
    },
}
# Pages that show how the entries of a folder are used.
GUIDES = dict(
    backbones=(
        'docs/own_config.md',
        'docs/how_it_works.md',
        'docs/evidence.md',
        'docs/tutorials/finetune.md',
    ),
    layers=('docs/how_it_works.md', 'docs/rope.md'),
    checkpoints=('docs/weights.md', 'docs/weights_reference.md'),
    weights=('docs/models.md',),
    inference=('docs/inference.md', 'docs/inference_reference.md'),
    export=('docs/export.md', 'docs/tutorials/onnx.md'),
    engine=('docs/own_data.md', 'docs/own_config.md', 'docs/tutorials/finetune.md'),
    analysis=('docs/analysis.md',),
)
