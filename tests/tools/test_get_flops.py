"""get_flops.py: counts of any model at any size."""

import pytest
from tiny_configs import CLASSIFIER, parsed

from cpvt_backbones.analysis.complexity import complexity_against_size
from cpvt_backbones.analysis.tables import read_table
from cpvt_backbones.toolboxes import read_config

WIDER = ['model.backbone.arch.embed_dims=128', 'model.head.in_channels=128']


@pytest.fixture
def classifier(tmp_path):
    config = tmp_path / 'classifier.py'
    config.write_text(CLASSIFIER.replace('{root}', str(tmp_path)))
    return config


def counted(printed):
    """The table's cells, by model and image size."""
    rows = [
        [cell.strip() for cell in line.split('│')[1:-1]]
        for line in printed.splitlines()
        if line[:1] == '│'
    ]
    return {(row[0], row[1]): [float(cell) for cell in row[2:5]] for row in rows}


def test_the_size_and_options_of_a_config_count(classifier, call, capsys):
    pytest.importorskip('mmpretrain')
    for shape, size in (([], (224, 224)), (['--shape', '128x200'], (128, 200))):
        call('get_flops', classifier, *shape, '--cfg-options', *WIDER)
        found = counted(capsys.readouterr().out)['classifier', '{} x {}'.format(*size)]
        config = read_config(classifier, cfg_options=parsed(WIDER))
        (row,) = complexity_against_size({'classifier': config}, [size])
        layers = row.gmacs - row.attention_gmacs
        assert found[0] == round(row.parameters / 1e6, 2)
        assert found[1:] == pytest.approx([layers, row.attention_gmacs], abs=0.0051)


def test_several_models_and_sizes_become_a_csv(classifier, tmp_path, call, capsys):
    pytest.importorskip('mmpretrain')
    out = tmp_path / 'flops.csv'
    backbone = "dict(type='CPVT', arch=dict(embed_dims=16, depth=1, num_heads=2, mlp_ratio=2))"
    call('get_flops', classifier, f'column-16={backbone}', '--shape', '64', '64x96', '--out', out)
    rows = read_table(out)
    assert [(row['model'], row['height'], row['width']) for row in rows] == [
        (name, '64', width) for name in ('classifier', 'column-16') for width in ('64', '96')
    ]
    (found,) = complexity_against_size({'classifier': read_config(classifier)}, [(64, 96)])
    assert int(rows[1]['parameters']) == found.parameters
    assert float(rows[1]['gmacs']) == pytest.approx(found.gmacs, rel=1e-5)
    assert {row['peak_mib'] for row in rows} == {''}
    assert len(counted(capsys.readouterr().out)) == 4


PLAIN = 'CONFIG.py or dict(type=...) of plain data is expected'
SIZE = 'HEIGHTxWIDTH or SIDE in px is expected'


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        (['CPVT'], PLAIN),
        (["dict(type='CPVT', arch=open('x'))"], PLAIN),
        (['cpvt=dict()', '--shape', '0'], SIZE),
        (
            ['cpvt=dict()', '--shape', '800', '600'],
            '--shape: write 800x600 for one size, 800x800 600x600',
        ),
        (['cpvt=dict()', '--shape', '1x2x3'], SIZE),
        ([], 'the following arguments are required: MODEL'),
    ],
)
def test_wrong_arguments(arguments, message, refused):
    assert message in refused('get_flops', *arguments)
