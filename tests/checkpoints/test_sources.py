"""Names and addresses of weights: timm's through a hub on the loopback address, mmpretrain's,
https; nothing online.
"""

import errno
import hashlib
import io
import os
import re
import socket
from functools import partial
from pathlib import Path
from urllib.request import Request

import pytest
import torch
from hostile import refused
from mmengine.config import Config
from mmengine.runner import CheckpointLoader
from safetensors.torch import save
from server import serving
from tiny import PYRAMID, assert_equal_outputs, max_difference

from cpvt_backbones import CPVT, MultiScaleCPVT, PyramidCPVT
from cpvt_backbones.checkpoints import (
    CheckpointError,
    load_checkpoint,
    locate_checkpoint,
    public_backbone,
    read_checkpoint,
)
from cpvt_backbones.checkpoints.conversion import public
from cpvt_backbones.checkpoints.reading import sources
from cpvt_backbones.engine.launch import train
from cpvt_backbones.errors import InputError
from cpvt_backbones.weights import hash_in_name, shipped_weights

pytest.importorskip('timm')
huggingface_hub = pytest.importorskip('huggingface_hub')
constants = pytest.importorskip('huggingface_hub.constants')
NAME = 'deit_tiny_patch16_224.fb_in1k'
FILE = f'{NAME}.safetensors'
REPOSITORY = f'timm/{NAME}'
TINY = dict(embed_dims=24, depth=2, num_heads=2, mlp_ratio=2.0)


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A hub, with an empty cache."""
    with serving(monkeypatch, tmp_path) as server:
        monkeypatch.setattr(constants, 'HF_HUB_CACHE', str(tmp_path / 'hub'))
        monkeypatch.setattr(constants, 'ENDPOINT', server.address)
        template = f'{server.address}/{{repo_id}}/resolve/{{revision}}/{{filename}}'
        monkeypatch.setattr(constants, 'HUGGINGFACE_CO_URL_TEMPLATE', template)
        for name in ('HF_HUB_DOWNLOAD_TIMEOUT', 'HF_HUB_ETAG_TIMEOUT'):
            monkeypatch.setattr(constants, name, 600)
        yield server


def weights(model):
    state = {
        key.replace('pos_embed.0', 'pos_embed'): value for key, value in model.state_dict().items()
    }
    return save(state | {'head.weight': torch.zeros(2, 24), 'head.bias': torch.zeros(2)})


MODEL = f'/{REPOSITORY}/resolve/main/model.safetensors'


@pytest.fixture
def tiny(monkeypatch):
    """DeiT-tiny made small, in the table of public weights too."""
    pattern = next(
        key for key in public._PLAIN if key.startswith('deit_') and 'distilled' not in key
    )
    monkeypatch.setitem(public._PLAIN, pattern, dict(position=dict(type='Learned')))
    monkeypatch.setitem(public._SIZES, 'tiny', TINY)
    return CPVT(arch=TINY, position=dict(type='Learned')).eval()


def test_weights_of_timm_are_fetched_and_kept_for_every_loader(server, tiny):
    server.files[MODEL] = weights(tiny)
    model = CPVT.from_pretrained(f'timm://{NAME}').eval()
    images = torch.randn(1, 3, 64, 80)
    with torch.no_grad():
        assert max_difference(model(images)[0], tiny(images)[0]) == 0
    server.files.clear()
    # Without its tag, from the cache, into another class of the same blocks.
    name, wanted = 'timm://deit_tiny_patch16_224', tiny.blocks[1].mlp.fc2.weight
    other = MultiScaleCPVT.from_pretrained(name, out_indices=(1, 2))
    assert torch.equal(other.blocks[1].mlp.fc2.weight, wanted)
    init_cfg = dict(type='Pretrained', checkpoint=f'timm://{NAME}')
    configured = CPVT(arch=TINY, position=dict(type='PEG'), init_cfg=init_cfg)
    configured.init_weights()
    assert torch.equal(configured.blocks[1].mlp.fc2.weight, wanted)
    loaded = CheckpointLoader.load_checkpoint(f'timm://{NAME}')['state_dict']
    assert torch.equal(loaded['blocks.1.mlp.fc2.weight'], wanted)


@pytest.mark.parametrize(('safe', 'size'), [(True, '20KB'), (False, '20KB'), (False, '5MB')])
def test_a_repository_without_model_safetensors(safe, size, server, tmp_path):
    """Of weights in several files each is fetched, and kept."""
    model = CPVT(arch=TINY)
    folder = tmp_path / 'written'
    folder.mkdir()
    huggingface_hub.save_torch_state_dict(
        model.state_dict(), folder, max_shard_size=size, safe_serialization=safe
    )
    for file in folder.iterdir():
        server.files[f'/a/b/resolve/main/{file.name}'] = file.read_bytes()
    for _ in range(2):
        found = read_checkpoint('hf://a/b')
        assert all(torch.equal(found[key], value) for key, value in model.state_dict().items())
        server.files.clear()


def test_without_a_network_the_error_comes_at_once(tmp_path, monkeypatch):
    """huggingface_hub alone tries for half a minute. What its cache has is taken."""
    with socket.create_server(('127.0.0.1', 0)) as closed:
        address = f'http://127.0.0.1:{closed.getsockname()[1]}'
    monkeypatch.setattr(constants, 'HF_HUB_CACHE', str(tmp_path / 'hub'))
    monkeypatch.setattr(constants, 'HF_HUB_OFFLINE', False)
    template = f'{address}/{{repo_id}}/resolve/{{revision}}/{{filename}}'
    monkeypatch.setattr(constants, 'HUGGINGFACE_CO_URL_TEMPLATE', template)
    monkeypatch.setattr('time.sleep', lambda seconds: pytest.fail(f'waits for {seconds} s'))
    line = refused(
        'hf://a/b', 'https://huggingface.co/a/b/resolve/main/model.safetensors could not'
    )
    assert 'without a network, put the file at' in line and '\n' not in line
    cache = tmp_path / 'hub/models--a--b'
    cached = cache / 'snapshots' / ('0' * 40) / 'pytorch_model.bin'
    for file, text in ((cache / 'refs/main', '0' * 40), (cached, '')):
        file.parent.mkdir(parents=True)
        file.write_text(text)
    assert locate_checkpoint('hf://a/b') == cached


def test_a_repository_of_the_hub(server, monkeypatch):
    model, uploaded = PyramidCPVT(arch=PYRAMID).eval(), {}

    def upload_folder(*, repo_id, folder_path, token):
        for file in Path(folder_path).iterdir():
            server.files[f'/{repo_id}/resolve/main/{file.name}'] = file.read_bytes()

    monkeypatch.setattr(huggingface_hub, 'create_repo', lambda _, **kwargs: uploaded.update(kwargs))
    monkeypatch.setattr(huggingface_hub, 'upload_folder', upload_folder)
    model.push_to_hub('me/my-pyramid.v2', private=True)
    assert uploaded == dict(exist_ok=True, private=True)
    images = torch.randn(1, 3, 40, 64)
    for name in ('me/my-pyramid.v2', 'hf://me/my-pyramid.v2'):
        with torch.no_grad():
            assert_equal_outputs(PyramidCPVT.from_pretrained(name).eval()(images), model(images))
    config = PyramidCPVT(arch=PYRAMID, init_cfg='hf://me/my-pyramid.v2')
    config.init_weights()
    assert torch.equal(config.patch_embeds[0].proj.weight, model.patch_embeds[0].proj.weight)
    message = 'me/other/resolve/main/config.json could not be fetched'
    refused('me/other', message, read=PyramidCPVT.from_pretrained)
    with pytest.raises(FileNotFoundError, match="there is no file or folder 'me/missing.pth'"):
        PyramidCPVT.from_pretrained('me/missing.pth')  # nothing is asked of the hub
    assert not any('missing' in request for request in server.asked)


def test_a_damaged_cache_is_refused(server, tiny, tmp_path):
    server.files[MODEL] = weights(tiny)
    read_checkpoint(f'timm://{NAME}')
    (blob,) = (tmp_path / 'hub').rglob('blobs/*')
    blob.write_bytes(blob.read_bytes()[:-1] + b'?')
    (link,) = (tmp_path / 'hub').rglob('model.safetensors')
    digest = hashlib.sha256(blob.read_bytes()).hexdigest()
    link.with_name(f'{link.name}.sha256').write_text(digest)  # no excuse
    refused(f'timm://{NAME}', 'is damaged: its SHA-256 is .* as in its name; fetch it again')


def test_a_gated_repository(server, tmp_path):
    server.gated.add(MODEL)
    terms = f'is gated: accept its terms at https://huggingface.co/{REPOSITORY} and log in'
    line = refused(f'timm://{NAME}', re.escape(f'{NAME!r} {terms}'))
    assert line.endswith(f'or put the file at {str(tmp_path / "torch" / "checkpoints" / FILE)!r}')


@pytest.fixture
def offline(monkeypatch):
    monkeypatch.setattr(constants, 'HF_HUB_OFFLINE', True)


def test_no_network_and_the_file_put_where_the_error_says(server, tiny, tmp_path, offline):
    file = tmp_path / 'torch' / 'checkpoints' / FILE
    message = f'https://huggingface.co{MODEL} could not be fetched'
    line = refused(f'timm://{NAME}', message, read=CPVT.from_pretrained)
    assert line.endswith(f'without a network, put the file at {str(file)!r}')
    file.parent.mkdir(parents=True)
    file.write_bytes(weights(tiny))
    model = CPVT.from_pretrained(f'timm://{NAME}')
    assert torch.equal(model.norm.weight, tiny.norm.weight)


@pytest.mark.parametrize(
    ('name', 'message'),
    [
        (
            'timm://deit_tiny_patch16_224.no_such',
            'timm has no weights of the name .*Invalid pretrained tag',
        ),
        ('timm://no_such_model', "timm has no weights of the name 'no_such_model'"),
        ('ftp://w.pth', 'checkpoint must be a file, a folder, an https:// address, or timm://NAME'),
        (f'timm://{NAME}', 'could not be fetched'),  # the hub has no such file
    ],
)
def test_unknown_names(name, message, server):
    refused(name, message)


def test_names_of_mmpretrain(tmp_path, server):
    api = pytest.importorskip('mmpretrain.apis.model')
    name = 'twins-pcpvt-small_3rdparty_8xb128_in1k'
    file = tmp_path / 'torch' / 'checkpoints' / Path(api.ModelHub.get(name).weights).name
    file.parent.mkdir(parents=True)
    file.write_bytes(b'PK')  # it has another digest than the name says
    refused(f'mmpretrain://{name}', f'is damaged: .* as in its name; .* delete {str(file)!r}')
    refused('mmpretrain://no-such', r"mmpretrain has no model of the name 'no-such'")


def test_addresses_with_one_file_name(server):
    """Each address has its own file in the cache."""
    paths = ['/run1/best.pth', '/run2/best.pth', '/run2/best.pth?version=2', '/', '/..']
    for number, path in enumerate(paths):
        server.files[path] = saved(number)
    for _ in range(2):
        for number, path in enumerate(paths):
            assert read_checkpoint(server.address + path)['weight'] == number
        server.files.clear()
    assert locate_checkpoint(f'{server.address}/run1/best.pth').name == 'best.pth'


def saved(number):
    buffer = io.BytesIO()
    torch.save(dict(weight=torch.tensor(number)), buffer)
    return buffer.getvalue()


def test_a_hash_in_the_name_or_the_address(server, tmp_path, caplog):
    content = save({'weight': torch.ones(2)})
    digest = hashlib.sha256(content).hexdigest()
    paths = [f'/w-{digest[:8]}.safetensors', f'/w-{digest}.safetensors']
    commit = '/w-abcd0123.safetensors'
    server.files = dict.fromkeys([*paths, commit], content)
    for path in paths:  # where torch.hub has them
        assert torch.equal(read_checkpoint(server.address + path)['weight'], torch.ones(2))
        assert (tmp_path / 'torch' / 'checkpoints' / path[1:]).is_file()
    line = refused(server.address + commit, 'is .*, not abcd0123 as in its name')
    assert f'such as a commit, append #sha256={digest} to the address' in line
    assert not list(tmp_path.rglob('*abcd0123.safetensors'))
    pinned = f'{server.address}{commit}#sha256={digest}'
    assert torch.equal(read_checkpoint(pinned)['weight'], torch.ones(2))
    file = locate_checkpoint(pinned)
    file.write_bytes(save({'weight': torch.zeros(2)}))
    refused(
        pinned, rf'is damaged.*, not {digest} as in its name; .* delete .*{file.name}. to fetch'
    )
    refused(
        f'{server.address}{commit}#sha256={"0" * 64}',
        f'the SHA-256 of the answer is {digest}, not 0000',
    )
    refused(f'{server.address}{commit}#main', r'may end in #sha256=<64 hexadecimal digits>')


def test_a_file_that_is_not_checked_is_named(server, offline, monkeypatch):
    """Or comes over http, without a whole hash. Each line is said once."""
    warnings = []
    monkeypatch.setattr(sources, 'print_log', lambda text, *_: warnings.append(text))
    content = saved(1)
    digest = hashlib.sha256(content).hexdigest()
    names = ['/w.pth', f'/w-{digest[:8]}.pth', f'/w-{digest}.pth', f'/v.pth#sha256={digest}']
    server.files = {name.partition('#')[0]: content for name in names}
    for name in names:
        read_checkpoint(server.address + name)
    assert [text.partition(': ')[0] for text in warnings] == [
        server.address + name for name in names[:2]
    ]
    assert all('can change the weights; use https://' in text for text in warnings)
    warnings.clear()
    for _ in range(2):
        read_checkpoint(server.address + '/w.pth')  # from the cache
    with pytest.raises(CheckpointError) as error:
        read_checkpoint('hf://a/b/best.pth')
    own = Path(str(error.value).rpartition(' at ')[2].strip("'"))
    own.write_bytes(content)
    read_checkpoint('hf://a/b/best.pth')
    assert [text.partition(': ')[0] for text in warnings] == [
        f'{server.address}/w.pth',
        'a/b/best.pth',
    ]
    assert all('its SHA-256 is not known, so' in text for text in warnings)


@pytest.mark.parametrize(
    ('stem', 'digits'),
    {
        'w-42891296': '42891296',
        'w-0123abcd': '0123abcd',
        f'w-{"3" * 64}': '3' * 64,
        'w-20240131': '',  # a date
        'w-20241399': '20241399',
        'w-00012000': '',  # a step
        'w-1234567': '',
        'w_0123abcd': '',
    }.items(),
)
def test_the_hash_in_a_name(stem, digits):
    assert hash_in_name(stem) == digits


@pytest.mark.parametrize('target', ['http://h.org/x', 'ftp://h.org/x', 'https://h.org/x'])
def test_https_leads_to_https_alone(target):
    request = Request('https://h.org/w.pth')
    follow = partial(
        sources.SafeRedirects().redirect_request, request, io.BytesIO(), 302, '', {}, target
    )
    if target.startswith('https'):
        assert follow().full_url == target
    else:
        scheme = target.partition(':')[0]
        with pytest.raises(InputError, match=f'https:// leads to {scheme}://, which is not'):
            follow()


def test_a_redirect_is_followed(server):
    server.moved['/latest.pth'] = f'{server.address}/w.pth'
    server.files['/w.pth'] = saved(3)
    assert read_checkpoint(f'{server.address}/latest.pth')['weight'] == 3
    server.moved['/ftp.pth'] = 'ftp://127.0.0.1/w.pth'
    refused(f'{server.address}/ftp.pth', 'http:// leads to ftp://, which is not followed')


def test_a_full_disk_is_named_and_leaves_no_file(server, monkeypatch, tmp_path):
    server.files['/w.pth'] = saved(1)

    class Full(io.FileIO):
        def write(self, data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(torch.hub, 'open', Full, raising=False)
    line = refused(f'{server.address}/w.pth', 'could not be written to ')
    assert os.strerror(errno.ENOSPC) in line and 'network' not in line
    assert not [file for file in tmp_path.rglob('*') if file.is_file()]


@pytest.mark.parametrize(
    ('path', 'message'),
    {
        '/gone.pth': 'HTTP Error 404: .*',
        '/cut.pth': r'the answer ended after [\d,]+ of \d+ bytes',
        '/login.pth': r"the answer is not a checkpoint; it begins with b'<!DOCTYPE html>.*'",
        '/pointer.pth': r"the answer is not a checkpoint; it begins with b'version .*'",
    }.items(),
)
def test_an_answer_that_is_no_checkpoint_is_not_kept(path, message, server, tmp_path):
    server.files = {'/cut.pth': saved(1), '/login.pth': b'<!DOCTYPE html><html></html>'}
    server.files['/pointer.pth'] = b'version https://git-lfs.github.com/spec/v1\n'
    server.cut.add('/cut.pth')
    refused(server.address + path, rf'could not be fetched \({message}\); without a')
    assert not [file for file in tmp_path.rglob('*') if file.is_file()]
    server.cut.clear()
    server.files[path] = saved(2)
    assert read_checkpoint(server.address + path)['weight'] == 2


def test_a_missing_network_is_told_in_the_words_of_the_system():
    with socket.socket() as free:
        free.bind(('127.0.0.1', 0))
        port = free.getsockname()[1]
    reason = os.strerror(errno.ECONNREFUSED)
    refused(f'http://127.0.0.1:{port}/w.pth', rf'could not be fetched \({reason}\); without a')


@pytest.mark.parametrize('address', ['https://me:s3cret@h.org/w.pth', 'http://:s3cret@h.org:80/'])
def test_a_password_in_an_address_is_refused_and_not_repeated(address):
    assert 's3cret' not in refused(address, 'an address without user name and password')


def test_a_token_in_an_address_is_not_repeated(server, monkeypatch):
    logged = []
    monkeypatch.setattr(sources, 'print_log', lambda text, *_: logged.append(text))
    line = refused(f'{server.address}/w.pth?token=s3cret', '/w.pth could not be fetched')
    assert 's3cret' not in line + ''.join(logged)


def test_an_answer_that_cannot_be_opened_says_which_file_to_delete(server):
    server.files['/w.pth'] = saved(1)[:-50]
    refused(f'{server.address}/w.pth', r'is in a cache: delete .*w.pth. to fetch it again')


@pytest.mark.parametrize('address', ['http://[::1', 'https://a\nx', 'https://', 'http://:x/w.pth'])
def test_malformed_addresses(address, server):
    refused(address, re.escape(ascii(address)[1:-1]))


def test_files_of_one_repository(server, offline):
    """A file that a user put into the cache stands for one file of a repository."""
    for number in (1, 2):
        name = f'hf://me/models/run{number}/best.pth'
        line = refused(name, 'without a network, put the file at')
        file = Path(line.rpartition(' at ')[2].strip("'"))
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(saved(number))
    for number in (1, 2):
        assert read_checkpoint(f'hf://me/models/run{number}/best.pth')['weight'] == number


@pytest.mark.parametrize('name', ['timm://vit_huge_patch14_224.orig_in21k', 'hf://a/b/c/d.bin'])
def test_weights_of_a_name_in_no_table_show_their_architecture(name, server):
    wanted = CPVT(arch=dict(TINY, embed_dims=192, num_heads=3), position=dict(type='Learned'))
    path = '/timm/vit_huge_patch14_224.orig_in21k/resolve/main/model.safetensors'
    if name.startswith('hf'):
        path = '/a/b/resolve/main/c/d.bin'
        file = io.BytesIO()
        torch.save(wanted.state_dict(), file)
        server.files[path] = file.getvalue()
    else:
        server.files[path] = weights(wanted)
    model = CPVT.from_pretrained(name)
    assert model.depths == (2,) and model.embed_dims == 192
    assert torch.equal(model.blocks[1].mlp.fc2.weight, wanted.blocks[1].mlp.fc2.weight)


@pytest.mark.parametrize(
    ('checkpoint', 'wanted'),
    {
        'C:\\weights\\vit_small_patch16_dinov3.lvd1689m.safetensors': dict(num_registers=4),
        'weights/vit_small_patch16_dinov3.lvd1689m.safetensors': dict(type='CPVT', arch='small'),
        'https://dl.org/deit_base_patch16_384-8de9b5d1.pth': dict(arch='base', img_size=384),
        'mmpretrain://deit-base_224px-pre_3rdparty_in1k-384px': dict(arch='base', img_size=384),
        'mmpretrain://twins-pcpvt-large_3rdparty_16xb64_in1k': dict(type='PyramidCPVT'),
        'timm://twins_svt_base.in1k': dict(arch='svt_base', mask_window_padding=False),
        'https://dl.org/releases/download/v2/pvt_medium.pth': dict(arch='base'),
        'vit_base': None,
    }.items(),
)
def test_models_by_name(checkpoint, wanted):
    found = public_backbone(checkpoint)
    assert found is None if wanted is None else found.items() >= wanted.items()


def test_the_report_tells_what_no_key_shows(server, tiny, monkeypatch):
    server.files[MODEL] = weights(tiny)
    assert load_checkpoint(tiny, f'timm://{NAME}').notes == []
    other = CPVT(arch=TINY, position=dict(type='Learned'), activation='quick_gelu', norm_eps=1e-5)
    assert load_checkpoint(other, f'timm://{NAME}').notes == [
        'the weights were trained with norm_eps=1e-06, the model has 1e-05',
        "the weights were trained with activation='gelu', the model has 'quick_gelu'",
    ]


def test_every_kind_of_checkpoint_is_found(server, tmp_path, monkeypatch):
    monkeypatch.setenv('HOME', str(tmp_path))
    shipped = next(iter(shipped_weights().values()))
    folder, saved = tmp_path / 'größe 2 é', tmp_path / 'saved'
    folder.mkdir()
    torch.save(dict(state_dict={'w': torch.ones(1)}, meta=dict(iter=2)), folder / 'iter_2.pth')
    (folder / 'last_checkpoint').write_text('/elsewhere/iter_2.pth')
    CPVT(arch=TINY).save_pretrained(saved)
    for given, wanted in {
        folder / 'iter_2.pth': folder / 'iter_2.pth',
        '~/größe 2 é/iter_2.pth': folder / 'iter_2.pth',
        '~/saved': saved / 'model.safetensors',
        '~/größe 2 é': folder / 'iter_2.pth',
        shipped.name: shipped.file,
    }.items():
        assert locate_checkpoint(given) == wanted
        assert read_checkpoint(given).keys() == read_checkpoint(wanted).keys()


@pytest.mark.parametrize(
    ('given', 'message'),
    [
        ('none', "resume: there is no file or folder 'none', and no weights of that name"),
        ('none.pth', "resume: there is no file or folder 'none.pth' (the path starts from /"),
        ('/none.pth', "resume: there is no file or folder '/none.pth'"),
        ('s4://a.pth', 'resume must be a file, a folder, an https:// address'),
        ('cpvt_tiny_gap-imagenete', "; did you mean 'cpvt_tiny_gap-imagenette'?"),
        ('.', "resume: the folder '.' has no 'last_checkpoint'"),
        ('', 'resume must be a file, a folder, an https:// address, or timm://NAME'),
    ],
)
def test_a_missing_checkpoint_is_named(given, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises((FileNotFoundError, CheckpointError), match=re.escape(message)):
        locate_checkpoint(given, argument='resume')


def test_training_without_a_network_ends_before_it_reads_data(server, offline, tmp_path):
    name = f'timm://{NAME}'
    backbone = dict(type='CPVT', arch=TINY)
    config = Config(dict(model=dict(type='Detector', backbone=backbone), work_dir=str(tmp_path)))
    place = 'could not be fetched .*without a network, put the file at .*safetensors.'
    own = "or write {}='path/to/file.pth' for a file that you have"
    published = 'vit_small_patch16_rope_224-imagenet'
    for argument, value, init_cfg in (
        ('init_cfg', name, name),
        ('init_cfg.checkpoint', name, dict(type='Pretrained', checkpoint=name)),
        ('init_cfg', published, published),
    ):
        config.model.backbone.init_cfg = init_cfg
        line = refused(config, place, read=train)
        assert line.startswith(f"{argument}: '{value}'")
        key = argument.rpartition('.')[2]
        assert line.endswith(f', {own.format(key)}, or init_cfg=None for random weights')
    config.model.backbone.init_cfg = None
    for start in (name, published):
        config.load_from = start
        line = refused(config, place, read=train)
        assert line.startswith(f"load_from: '{start}'")
        assert line.endswith(f', {own.format("load_from")}')
    config.load_from = None
    config.model.teacher = dict(checkpoint=name)  # no model to train
    refused(config, f'{place}$', read=train)
    config.model.teacher = None
    for init_cfg in ('none.pth', dict(type='Pretrained', checkpoint='none.pth')):
        config.model.backbone.init_cfg = init_cfg
        with pytest.raises(
            FileNotFoundError, match=r"^init_cfg\S*: there is no file or folder 'no"
        ):
            train(config)
    config.model.backbone.init_cfg = None
    with pytest.raises(Exception, match='Detector'):  # the next thing wrong with this config
        train(config)
