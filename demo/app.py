"""Try models on images in a browser: features, attention, predictions, one image at several sizes.

    python demo/app.py                                  # the shipped models
    python demo/app.py CONFIG CHECKPOINT --port 8000    # and a trained model

The page listens on this machine only. It asks for no password: before you open it to others with
--host, put a proxy with TLS and a login in front. One image is worked on at a time, and nothing is
fetched from the network.
"""

import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1] / 'tools'))  # for command_line

import command_line as cli

MAX_BYTES = 64 << 20  # of an upload
WAITING = 8  # requests that wait for a model; others are refused
SESSIONS = 50  # whose images are kept in memory
HOSTS = ('127.0.0.1', 'localhost')
CSS = """
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(260px, 1fr)); gap: 1em; }
.figures figure { margin: 0; } .figures img { width: 100%; }
.grid-container { grid-template-columns: repeat(3, minmax(0, 1fr)) !important; }
.min_value, .max_value, [role=tab].selected { color: var(--body-text-color) !important; }
"""


def prepare_gradio(folder: str) -> None:
    """Import Gradio so that it opens no connection and keeps its files in ``folder``."""
    os.environ.update(GRADIO_ANALYTICS_ENABLED='False', HF_HUB_OFFLINE='1', GRADIO_TEMP_DIR=folder)
    # It asks its own server whether it is up, which must not go through a proxy.
    os.environ['NO_PROXY'] = ','.join((*HOSTS, os.environ.get('NO_PROXY', '')))
    import gradio

    async def refuse(url: str, **_: Any) -> str:
        raise gradio.Error('Addresses are not fetched; upload the image.', print_exception=False)

    # Without this, a request that names an address in place of an upload has it downloaded.
    gradio.processing_utils.async_ssrf_protected_download = refuse


def launch(blocks: Any, *, host: str, port: int) -> str:
    """Start the server in a thread; its address."""
    import gradio
    from starlette.middleware import Middleware
    from starlette.middleware.trustedhost import TrustedHostMiddleware

    hosts = ['*'] if host in ('0.0.0.0', '::') else [*HOSTS, host]
    blocks.queue(max_size=WAITING)
    _, address, _ = blocks.launch(
        server_name=host,
        server_port=port,
        prevent_thread_lock=True,
        share=False,
        quiet=True,
        footer_links=[],
        run_history=False,
        enable_monitoring=False,
        max_file_size=MAX_BYTES,
        state_session_capacity=SESSIONS,
        theme=gradio.themes.Default(font=['system-ui', 'sans-serif'], font_mono=['monospace']),
        css=CSS,
        app_kwargs=dict(middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=hosts)]),
    )
    return address


def main(argv: Sequence[str] | None = None) -> None:
    parser = cli.make_parser(__doc__)
    model = 'config file and checkpoint of one more model (default: the shipped models)'
    parser.add_argument('model', nargs='*', metavar='CONFIG CHECKPOINT', help=model)
    parser.add_argument('--host', default=HOSTS[0], help='address to listen on')
    parser.add_argument('--port', type=int, default=7860)
    parser.add_argument('--device', help='cpu, cuda:1, ... (default: a GPU if there is one)')
    cli.add_config_arguments(parser)
    args = parser.parse_args(argv)
    given = None
    if args.model:
        config, checkpoint, _ = cli.split_model(args.model)
        given = cli.config_from(args, config), checkpoint
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the folder is removed
    with tempfile.TemporaryDirectory(prefix='cpvt_app_') as folder:
        prepare_gradio(folder)
        from app_page import Page
        from app_views import list_models

        print('loading the first model ...', flush=True)
        blocks = Page(list_models(args.device, given)).blocks
        address = launch(blocks, host=args.host, port=args.port)
        print(f'open {address} (Ctrl-C ends it)', flush=True)
        try:
            signal.pause()
        finally:
            blocks.close(verbose=False)


if __name__ == '__main__':
    cli.run(main, interrupted='stopped')
