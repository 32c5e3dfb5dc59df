"""Try models on images in a browser: a page with boxes and class maps, sizes side by side,
attention and features.

    python demo/app.py                                  # the shipped models
    python demo/app.py CONFIG CHECKPOINT --port 8000    # and a trained model

The page and its HTTP API (/docs) listen on this machine only. They ask for no password: before you
open them to others with --host, put a proxy with TLS and a login in front. Uploads are held in
memory and a temporary folder, one image is worked on at a time, and nothing is fetched from the
network.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / 'tools'))  # for command_line

import command_line as cli


def main(argv: Sequence[str] | None = None) -> None:
    parser = cli.make_parser(__doc__)
    model = 'config file and checkpoint of one more model (default: the shipped models)'
    parser.add_argument('model', nargs='*', metavar='CONFIG CHECKPOINT', help=model)
    parser.add_argument('--host', default='127.0.0.1', help='address to listen on')
    parser.add_argument('--port', type=int, default=7860, help='0: any free one')
    parser.add_argument('--device', help='cpu, cuda:1, ... (default: a GPU if there is one)')
    parser.add_argument(
        '--max-bytes', type=cli.positive, default=64 << 20, help='maximum bytes of an upload'
    )
    parser.add_argument(
        '--read-limit', type=cli.positive, default=cli.READ_LIMIT, help='maximum pixels of an image'
    )
    parser.add_argument(
        '--waiting',
        type=cli.positive,
        default=4,
        help='maximum requests that wait; others are refused',
    )
    cli.add_config_arguments(parser)
    args = parser.parse_args(argv)
    given = cli.split_model(args.model)[:2] if args.model else None
    from try_images.models import list_models
    from try_images.server import Server

    models = list_models(
        device=args.device,
        given=None if given is None else (cli.config_from(args, given[0]), given[1]),
    )
    limits = dict(max_bytes=args.max_bytes, read_limit=args.read_limit, waiting=args.waiting)
    with Server((args.host, args.port), models, **limits) as server:
        print('loading the first model ...', flush=True)
        server.load()
        print(f'open http://{args.host}:{server.server_port}/ (Ctrl-C ends it)', flush=True)
        server.serve_forever()


if __name__ == '__main__':
    cli.run(main, interrupted='stopped')
