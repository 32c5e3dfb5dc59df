"""The command that compares logits of published models: peers, stored logits, and what it refuses.

The weights are random. They lie where the download would put them.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from mmengine.config import Config
from PIL import Image
from tiny import eomt

from benchmarks import published_logits as command
from benchmarks.peer_models import scaled
from cpvt import command_line
from cpvt_backbones import weights
from cpvt_backbones.checkpoints.reading.sources import cached_file
from cpvt_backbones.toolboxes import read_config

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / 'heads'))
from eomt_peers import AuthorsEoMT, published

ADDRESS = 'https://127.0.0.1:1/toys/model.pth'  # no server answers
PICTURE = 'http://127.0.0.1:1/cats.png'


@pytest.fixture
def publish(tmp_path, monkeypatch):
    """Function that makes a config and a file of weights the published model ``toys``."""
    monkeypatch.setattr(torch.hub, 'get_dir', lambda: str(tmp_path / 'torch'))

    def publish(config, state, content=None):
        if content is not None:
            config.parent.mkdir()
            config.write_text(content)
        entry = dict(about='toys', task='classification', dataset='a data set', scores={})
        entry |= dict(config=str(config), address=ADDRESS, source='this test', license='none')
        index = command_line.shipped_index() | {'toys': dict(entry, parameters=10**5)}
        (tmp_path / 'index.json').write_text(json.dumps(index))
        monkeypatch.setattr(weights, 'INDEX', tmp_path / 'index.json')
        file = cached_file(ADDRESS)
        file.parent.mkdir(parents=True)
        torch.save(state, file)
        return file

    return publish


@pytest.fixture
def of_timm(publish, tmp_path):
    """The file of a tiny model of timm."""
    timm = pytest.importorskip('timm')
    pytest.importorskip('mmpretrain')
    arch = dict(embed_dims=64, depth=6, num_heads=2, mlp_ratio=3.0)
    content = (
        "_base_ = 'mmpretrain::deit/deit-small_4xb256_in1k.py'\n"
        f"model = dict(head=dict(in_channels=64), backbone=dict(_delete_=True, type='CPVT',"
        f" arch={arch}, img_size=160, position=dict(type='Learned'), out_type='cls_token'))\n"
    )
    state = scaled(timm.create_model('test_vit')).state_dict()
    return publish(tmp_path / 'timm/test_vit.py', state, content)


def run(*arguments):
    """Exit code of the command."""
    try:
        command_line.run(lambda: command.main([*map(str, arguments)]))
    except SystemExit as stop:
        return stop.code
    return 0


def test_logits_of_the_publishers_code_are_stored_and_compared(
    of_timm, tmp_path, capsys, monkeypatch
):
    """With timm at first, then without it, then with another weight in the file."""
    stored = tmp_path / 'stored.csv'
    assert run('toys', '--store', '--stored', stored) == 0
    printed = capsys.readouterr().out
    (row,) = command.read_stored(stored)
    assert row.source.startswith('timm ') and row.sha256 == weights.sha256_of(of_timm)
    assert len(row.logits) == len({*row.places}) == 10
    assert printed.count('they agree') == 2 and 'all logits differ by at most' in printed
    timm_model = command.published.timm_model('test_vit', torch.load(of_timm, weights_only=True))
    with torch.no_grad():
        wanted = timm_model(command.waves(224, 224)).flatten()
    assert row.logits == pytest.approx([float(wanted[index]) for _, index in row.places])

    monkeypatch.setitem(sys.modules, 'timm', None)
    assert run('toys', '--stored', stored) == 0
    printed = capsys.readouterr().out
    assert printed.count('they agree') == 1 and 'another file' not in printed
    assert row.source in printed

    state = torch.load(of_timm, weights_only=True)
    state['blocks.3.mlp.fc1.weight'][5, 7] += 1
    torch.save(state, of_timm)
    assert run('toys', '--stored', stored) == 1
    printed = capsys.readouterr().out
    assert 'they DIFFER' in printed
    assert f'of another file, SHA-256 {row.sha256}' in printed


@pytest.mark.full
def test_a_model_of_a_toolbox(publish, tmp_path, capsys):
    """DeiT-Ti of mmpretrain: its file has keys of mmpretrain."""
    pytest.importorskip('mmpretrain')
    (config,) = (path for path in command.published.CONFIGS if path.name.startswith('deit-tiny_'))
    peer = command.published.build(read_config(command.published.peer_of(config)))
    publish(config, dict(state_dict=scaled(peer).state_dict(), meta={}))
    assert run('toys', '--store', '--stored', tmp_path / 'stored.csv') == 0
    printed = capsys.readouterr().out
    assert printed.count('they agree') == 2 and 'weights of the peer' not in printed
    (row,) = command.read_stored(tmp_path / 'stored.csv')
    assert row.source.startswith('mmpretrain ')


def test_a_model_that_computes_something_else_differs_from_the_publishers(of_timm, capsys):
    """The file fits both models, but this one has another position encoding."""
    config = of_timm.parents[3] / 'timm/test_vit.py'
    config.write_text(
        config.read_text().replace("type='Learned'", "type='Learned', antialias=False")
    )
    assert run('toys', '--stored', of_timm.parent / 'none.csv') == 1
    assert 'they DIFFER' in capsys.readouterr().out


def test_what_is_refused_in_one_line(of_timm, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, 'timm', None)
    stored = ['--stored', tmp_path / 'none.csv']

    def line(*arguments):
        assert run(*arguments, *stored) == 2
        (line,) = (one for one in capsys.readouterr().err.splitlines() if 'error: ' in one)
        return line

    assert "'toy' is not a published model; did you mean 'toys'?" in line('toy')
    needed = 'timm is not installed'
    assert f'has nothing to compare with: {needed}, and no logits are stored' in line('toys')
    assert f"needs the publisher's code: {needed}" in line('toys', '--store')
    of_timm.unlink()
    found = line('toys')
    assert f'put the file at {str(of_timm)!r}' in found and 'could not be fetched' in found


@pytest.fixture
def of_eomt(publish, tmp_path):
    """EoMT by its formula, whose weights are those of the file."""
    pytest.importorskip('mmdet')
    torch.manual_seed(0)
    peer = scaled(AuthorsEoMT(5)).eval()
    peer.attn_mask_probs.zero_()
    model = eomt(**{'test_cfg.square': 64})
    content = Config(dict(default_scope='mmdet', model=model)).pretty_text
    publish(tmp_path / 'eomt/toys.py', published(peer, 'network.'), content)
    return peer


def test_published_logits_of_a_picture(of_eomt, tmp_path, capsys):
    """By the formula, on a black square."""
    picture = tmp_path / 'torch/pictures/cats.png'
    pixels = torch.randint(0, 256, (48, 64, 3), dtype=torch.uint8)
    square = torch.zeros(1, 3, 64, 64)
    square[0, :, :48] = pixels.permute(2, 0, 1) / 255
    with torch.no_grad():
        ((masks, classes),) = of_eomt(square)
    values = [*classes[0, 0, :5].tolist(), *masks[0, 0, 0, :5].tolist()]
    places = [(output, index) for output in (0, 1) for index in range(5)]
    row = command.Stored('toys', PICTURE, 'a page', '', 1e-4, tuple(places), tuple(values))
    stored = tmp_path / 'stored.csv'
    command.write_stored(stored, row)

    assert run('toys', '--stored', stored) == 2
    assert f'put the picture at {str(picture)!r}' in capsys.readouterr().err
    Image.fromarray(pixels.numpy()).save(picture)
    assert run('toys', '--stored', stored) == 0
    printed = capsys.readouterr().out
    assert f'tolerance 0.0001; image: {PICTURE}' in printed and 'a page' in printed

    command.write_stored(stored, replace(row, logits=(values[0] + 0.1, *values[1:])))
    assert len(command.read_stored(stored)) == 1
    assert run('toys', '--stored', stored) == 1


def test_what_is_stored_belongs_to_published_models():
    rows = command.read_stored(command.STORED)
    assert rows and {row.name for row in rows} <= {*weights.published_weights()}
    assert all(len(row.places) == len(row.logits) == 10 for row in rows)


def test_an_output_of_each_part_of_a_detector_is_compared():
    outputs = [torch.zeros(1, 7, k + 1) for k in range(13)]
    places = command.places_in(outputs)
    assert len({*places}) == 10 and places[0][0] == 0 and places[-1][0] == 12
    assert [output for output, _ in command.places_in(outputs[:2])] == [0] * 5 + [1] * 5
    assert [index for _, index in command.places_in([torch.zeros(100)])] == [*range(5, 100, 10)]
