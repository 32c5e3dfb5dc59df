"""Dense transfer: every run tested at every size, repeatable, from the weights it says, reported as its CSV has it."""

from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from filelock import FileLock
from mmengine.config import Config

pytest.importorskip('mmseg')

from cpvt_backbones import CPVT
from cpvt_backbones.analysis.tables import read_table
from cpvt_backbones.analysis.transfer import (
    STARTS,
    Transfer,
    TransferRow,
    draw_transfer,
    read_transfer,
    transfer_report,
    write_transfer,
)

POSITIONS = {'peg': dict(type='PEG', after_blocks=(0,)), 'learned': dict(type='Learned')}


@pytest.fixture
def parts(tmp_path, segmentation_config, configs_as_they_come):
    """A config and a classifier's weights for each encoding."""
    base = segmentation_config
    base['model']['data_preprocessor']['size'] = (32, 40)
    base['model']['data_preprocessor']['test_cfg'] = dict(size_divisor=8)
    dataset = base['test_dataloader']['dataset']
    crop = [*dataset['pipeline'][:2], dict(type='RandomCrop', crop_size=(32, 40)), dict(type='PackSegInputs')]
    base |= dict(
        train_dataloader=dict(
            batch_size=2,
            num_workers=0,
            sampler=dict(type='InfiniteSampler', shuffle=True),
            dataset={**dataset, 'pipeline': crop},
        ),
        train_cfg=dict(type='IterBasedTrainLoop', max_iters=3, val_interval=3),
        test_cfg=dict(),
        optim_wrapper=dict(optimizer=dict(type='SGD', lr=0.1)),
        default_hooks=dict(checkpoint=dict(type='CheckpointHook', by_epoch=False, interval=1)),
    )
    configs, pretrained = {}, {}
    for encoding in POSITIONS:
        backbone = {**base['model']['backbone'], 'position': POSITIONS[encoding], 'img_size': 40}
        model = {**base['model'], 'backbone': backbone}
        configs['camvid', encoding] = tmp_path / f'{encoding}.py'
        configs['camvid', encoding].write_text(
            '\n'.join(f'{key} = {value!r}' for key, value in {**base, 'model': model}.items())
        )
        backbone.pop('type')
        classifier = CPVT(**{**backbone, 'img_size': 16})  # its table has another grid
        weights = {f'backbone.{key}': value for key, value in classifier.state_dict().items()}
        for seed in (0, 5):
            pretrained[encoding, seed] = tmp_path / f'{encoding}_{seed}.pth'
            torch.save({key: value + seed for key, value in weights.items()}, pretrained[encoding, seed])
    return configs, pretrained


@pytest.fixture
def transfer(parts, tmp_path):
    configs, pretrained = parts

    def make(folder, **options):
        return Transfer(
            folder=tmp_path / folder, configs=configs, pretrained=pretrained, sizes=(1.0, 1.5), images=4, **options
        )

    return make


def rows_of(transfer):
    return [row for record in transfer.records() for row in record['rows']]


def test_one_seed_gives_one_row_and_the_report_is_the_csvs(transfer, tmp_path):
    first, again = transfer('first'), transfer('again')
    told = []
    first.work([0], done=lambda record: told.append(len(first.left([0]))))
    assert told == [3, 2, 1, 0]
    # An interrupted run begins again.
    broken = tmp_path / 'again/camvid_peg_scratch_seed-0'
    broken.mkdir(parents=True)
    (broken / 'iter_2.pth').write_text('half a file')
    (broken / 'sizes.csv').write_text('half')
    del again.configs['camvid', 'learned']
    again.work([0])
    assert rows_of(again) == [row for row in rows_of(first) if row['encoding'] == 'peg']
    assert {(r['encoding'], r['start'], r['seed'], r['size']) for r in rows_of(first)} == {
        (e, s, 0, size) for e in POSITIONS for s in STARTS for size in (1.0, 1.5)
    }
    for record in first.records():
        assert record['images'] == 4 and record['machine']['torch']
        assert f"'seed': {record['seed']}" in record['config'] or f'seed={record["seed"]}' in record['config']
    assert not list((tmp_path / 'first').glob('*/iter_*.pth'))

    write_transfer(first.records(), tmp_path / 'rows.csv', tmp_path / 'runs.csv')
    rows = read_transfer(tmp_path / 'rows.csv')
    assert [asdict(row) for row in rows] == [{**row, 'value': pytest.approx(row['value'])} for row in rows_of(first)]
    assert (tmp_path / 'runs.csv').read_text().count('\n') == 5
    rows += [replace(row, seed=1, value=row.value + 2) for row in rows]
    text = transfer_report(rows, pictures='there')
    cell = [row.value for row in rows if (row.encoding, row.start, row.size) == ('peg', 'scratch', 1.0)]
    assert f'| scratch | peg | 2 | {cell[0] + 1:.1f} ± 1.4 |' in text
    assert 'scratch: peg minus learned' in text and 'learned: pretrained minus scratch' in text
    assert '](there/dense_transfer.png)' in text
    draw_transfer(rows, tmp_path / 'plot.png')
    assert (tmp_path / 'plot.png').stat().st_size > 5000


@pytest.mark.parametrize('encoding', POSITIONS)
def test_pretrained_means_the_classifiers_weights(transfer, parts, tmp_path, encoding):
    still = {'optim_wrapper.optimizer.lr': 0.0}
    transfer('still', cfg_options=still).work([5])
    wanted = torch.load(parts[1][encoding, 5])
    for start in STARTS:
        found = torch.load(tmp_path / f'still/camvid_{encoding}_{start}_seed-5/weights.pth')['state_dict']
        same = [torch.equal(found[name], value) for name, value in wanted.items() if found[name].dim() == 4]
        assert all(same) if start == 'pretrained' else not any(same)
    # A table takes the grid of the crops, not of the classifier.
    tables = [value for name, value in found.items() if 'pos_embed' in name]
    assert [table.shape[1] for table in tables] == ([25] if encoding == 'learned' else [])


def test_what_another_process_does_is_left_to_it(transfer, tmp_path):
    study = transfer('shared')
    del study.configs['camvid', 'learned']
    taken = FileLock(tmp_path / 'shared/.camvid_peg_scratch_seed-0.lock')
    (tmp_path / 'shared').mkdir()
    with taken:
        study.work([0])
    assert [run.name for run in study.left([0])] == ['camvid_peg_scratch_seed-0']
    study.images = 3
    with pytest.raises(ValueError, match="shared was begun with .*'images': 4.* use another folder"):
        study.work([0])


def test_missing_weights_are_named(parts, tmp_path):
    with pytest.raises(FileNotFoundError, match="pretrained: there is no file '.*nowhere.pth'"):
        Transfer(folder=tmp_path, configs=parts[0], pretrained={'peg': Path('nowhere.pth')})


def test_a_report_of_what_is_there():
    """One encoding from scratch at one seed: no interval, no column that was not run."""
    rows = [TransferRow('retinanet', 'peg', 'scratch', 0, size, 'coco/bbox_mAP', 0.25) for size in (0.5, 1.0)]
    text = transfer_report(rows)
    assert '| scratch | peg | 1 | 0.250 | 0.250 |' in text
    assert 'minus' not in text


def test_the_trunk_is_the_studys():
    configs = Path(__file__).resolve().parents[2] / 'configs'
    studied = Config.fromfile(configs / 'positional_encoding/peg-0-5-gap_imagenette.py').model.backbone
    for path in sorted((configs / 'dense_transfer').glob('*.py')):
        found = Config.fromfile(path).model.backbone
        assert found.arch == studied.arch
        if '_peg_' in path.name:
            assert {**found.position, 'kernel_size': 3} == studied.position


def test_the_page_says_what_its_csv_says():
    docs = Path(__file__).resolve().parents[2] / 'docs'
    _, _, rest = (docs / 'evidence.md').read_text().partition('<!-- dense-transfer: begin -->\n')
    written, _, _ = rest.partition('\n<!-- dense-transfer: end -->')
    rows = read_transfer(docs / 'evidence' / 'dense_transfer.csv')
    assert written == transfer_report(rows, pictures='evidence')
    names = ('task', 'encoding', 'start', 'seed')
    runs = {tuple(line[name] for name in names) for line in read_table(docs / 'evidence' / 'dense_transfer_runs.csv')}
    assert runs == {tuple(str(getattr(row, name)) for name in names) for row in rows}  # no row without its run
