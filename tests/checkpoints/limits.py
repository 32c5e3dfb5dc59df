"""Run a function in a forked process with limits of time and memory."""

import os
import resource
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any


def run_limited(
    function: Callable[[], Any], log: Path, *, seconds: int = 20, mebibytes: int = 1024
) -> int:
    """Exit code of a process that calls the function.

    Negative for a signal, as after too much time of the processor.

    Args:
        function: What to run.
        log: File for the traceback.
        seconds: Time of the processor, so that other processes do not count.
        mebibytes: Addresses that it may take beyond those of this process.
    """
    process = os.fork()
    if process:
        return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    code = 1
    try:
        pages = int(Path('/proc/self/statm').read_text().split()[0])
        limit = pages * resource.getpagesize() + (mebibytes << 20)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        used = resource.getrusage(resource.RUSAGE_SELF)
        limit = int(used.ru_utime + used.ru_stime) + seconds
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
        function()
        code = 0
    except BaseException:
        log.write_text(traceback.format_exc())
    finally:
        sys.stdout.flush()
        os._exit(code)
