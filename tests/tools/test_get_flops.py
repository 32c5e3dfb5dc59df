"""get_flops.py: counts of any model at any size."""

import pytest
from tiny_configs import CLASSIFIER

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


@pytest.mark.parametrize(
    ('shape', 'height', 'width'),
    [([], 224, 224), (['96'], 96, 96), (['128x200'], 128, 200)],
    ids=str,
)
def test_counts_of_a_config(classifier, call, capsys, shape, height, width):
    pytest.importorskip('mmpretrain')
    call('get_flops', classifier, *(['--shape', *shape] if shape else []), '--cfg-options', *WIDER)
    parameters, layers, attention = counted(capsys.readouterr().out)[
        'classifier', f'{height} x {width}'
    ]
    cells, dim = (height // 8) * (width // 8), 128
    block = 4 * dim**2 + 4 * dim + 2 * 2 * dim**2 + 3 * dim + 2 * 2 * dim
    weights = (3 * 64 + 1) * dim + 10 * dim + block + 2 * dim + 2 * dim + 2
    assert parameters == round(weights / 1e6, 2)
    macs = (
        cells * (3 * 64 * dim + 9 * dim + 4 * dim**2 + 2 * 2 * dim**2) + 2 * dim
    )  # patches, PEG, block, head
    assert layers == pytest.approx(macs / 1e9, abs=0.0051)
    assert attention == pytest.approx(2 * cells**2 * dim / 1e9, abs=0.0051)


def test_several_models_and_sizes_become_a_csv_and_a_picture(classifier, tmp_path, call, capsys):
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
    out.with_suffix('.png').unlink()
    capsys.readouterr()
    call('get_flops', '--out', out)  # draws the CSV again
    assert out.with_suffix('.png').is_file() and len(counted(capsys.readouterr().out)) == 4


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        (['CPVT'], 'CONFIG.py or dict(type=...) of plain data is expected'),
        (
            ["dict(type='CPVT', arch=open('x'))"],
            'CONFIG.py or dict(type=...) of plain data is expected',
        ),
        (['c.py', '--shape', '0'], 'HEIGHTxWIDTH or SIDE in px is expected'),
        (
            ['c.py', '--shape', '800', '600'],
            '--shape: write 800x600 for one size, 800x800 600x600 for two',
        ),
        (['c.py', '--shape', '1x2x3'], 'HEIGHTxWIDTH or SIDE in px is expected'),
        ([], 'a model, or the CSV of an earlier run as --out, is needed'),
        (['--out', 'none.csv'], "No such file or directory: 'none.csv'"),
    ],
)
def test_wrong_arguments(arguments, message, refused):
    assert message in refused('get_flops', *arguments)
