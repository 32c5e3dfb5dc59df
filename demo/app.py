"""Try models on images in a browser: features, attention, predictions, one image at several sizes.

    python demo/app.py                                  # the shipped models, and published ones
    python demo/app.py CONFIG CHECKPOINT --port 8000    # and a trained model

The page listens on this machine only. It asks for no password: before you open it to others with
--host, put a proxy with TLS and a login in front. One image is worked on at a time. Only the
weights of a published model that is chosen in the menu are fetched from the network.
"""

import os
import signal
import socket
import tempfile
from collections.abc import Sequence

from cpvt import command_line as cli


def main(argv: Sequence[str] | None = None) -> None:
    parser = cli.make_parser(__doc__)
    model = 'config file and checkpoint, or name, of the model to begin with (default: shipped)'
    parser.add_argument('model', nargs='*', metavar='CONFIG CHECKPOINT', help=model)
    parser.add_argument('--host', default='127.0.0.1', help='address to listen on')
    parser.add_argument('--port', type=int, default=7860)
    parser.add_argument('--device', help='cpu, cuda:1, ... (default: a GPU if there is one)')
    cli.add_config_arguments(parser)
    parser.checks.append(lambda args: check_port(args.host, args.port))
    parser.checks.append(lambda args: check_model(args.model))
    args = parser.parse_args(argv)
    given = None
    if args.model:
        config, checkpoint, _ = cli.split_model(args.model)
        given = cli.config_from(args, config), checkpoint
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the folder is removed
    with tempfile.TemporaryDirectory(prefix='cpvt_app_') as folder:
        os.environ['GRADIO_TEMP_DIR'] = folder
        from app_page import Page
        from app_views import list_models
        from mmengine.logging import MMLogger

        print('loading the first model ...', flush=True)
        address = Page(list_models(args.device, given)).launch(args.host, args.port)
        MMLogger.get_current_instance().setLevel('ERROR')  # the page itself warns of an image
        print(f'open {address} (Ctrl-C ends it)', flush=True)
        signal.pause()


def check_model(words: Sequence[str]) -> None:
    """Refuse a model that is not there, before torch is loaded."""
    if words:
        config, checkpoint, _ = cli.split_model(words)
        cli.check_config(str(config))
        cli.check_checkpoint(checkpoint)


def check_port(host: str, port: int) -> None:
    """Refuse a port that cannot be listened on, before a model is loaded."""
    if not 0 < port < 65536:
        raise cli.UsageError(f'--port must be in 1 to 65535, got {port}')
    try:
        with socket.create_server((host, port)):
            pass
    except OSError as error:
        # Python adds the address to the reason of a port in use, but to no look-up's (below 0).
        reason = os.strerror(error.errno) if (error.errno or 0) > 0 else error.strerror
        raise cli.UsageError(
            f'--port: {host} port {port} cannot be listened on ({reason}); choose another with'
            ' --port'
        ) from error


if __name__ == '__main__':
    cli.run(main, interrupted='stopped')
