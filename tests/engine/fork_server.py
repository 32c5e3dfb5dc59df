"""Runs tools/train.py again and again, each time in fresh processes, and pays for the imports once.

A process of its own. Each line of standard input is a job in JSON: ``processes``, ``arguments``,
``scope`` (the toolbox), ``folder``. Each line of standard output is the list of exit codes,
negative for the signal that ended a process. What the processes print goes to
``<folder>/<rank>.txt``.
"""

import importlib
import json
import os
import runpy
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def run(job: dict, rank: int) -> None:
    """Be one process of a job."""
    output = os.open(Path(job['folder'], f'{rank}.txt'), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    if job['processes'] > 1:
        # mmengine's own launcher asks for a GPU, and leaves alone a process group that is there.
        import torch

        os.environ |= {
            'RANK': str(rank),
            'LOCAL_RANK': str(rank),
            'WORLD_SIZE': str(job['processes']),
        }
        store = f'file://{job["folder"]}/store'
        torch.distributed.init_process_group(
            'gloo', init_method=store, rank=rank, world_size=job['processes']
        )
    sys.argv = ['train.py', *job['arguments']]
    sys.path.insert(0, str(ROOT / 'tools'))
    runpy.run_path(str(ROOT / 'tools' / 'train.py'), run_name='__main__')


def main() -> None:
    """Answer jobs until there are no more."""
    answers = os.fdopen(os.dup(1), 'w')
    os.dup2(2, 1)
    for line in sys.stdin:
        job = json.loads(line)
        importlib.import_module(
            'cpvt_backbones'
        )  # before the toolbox: it may provide mmcv's operators
        importlib.import_module(f'{job["scope"]}.utils').register_all_modules()
        children = []
        for rank in range(job['processes']):
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    run(job, rank)
                    code = 0
                except BaseException:
                    import traceback

                    traceback.print_exc()
                finally:
                    sys.stdout.flush()
                    sys.stderr.flush()
                    os._exit(code)
            children.append(child)
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        print(json.dumps(codes), file=answers, flush=True)


if __name__ == '__main__':
    main()
