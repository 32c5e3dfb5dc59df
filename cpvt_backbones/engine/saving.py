"""Atomic checkpoints: written under another name, flushed and renamed."""

import glob
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mmengine.dist import barrier, broadcast_object_list, is_main_process
from mmengine.fileio import LocalBackend, get_file_backend

from cpvt_backbones.checkpoints import flush_to_disk


def save_durably(
    save: Callable[..., None],
    out_dir: str,
    filename: str,
    *args: Any,
    together: bool = False,
    **options: Any,
) -> None:
    """Save a checkpoint so that a kill or a full disk leaves no incomplete file.

    A file or folder gets its name once it is complete and on the disk. Object stores do so
    themselves.

    Args:
        save: ``save_checkpoint`` of a runner.
        out_dir: Folder of the checkpoint.
        filename: Name of the checkpoint.
        args: Further arguments of ``save``.
        together: All processes write parts of the checkpoint, and all call this function.
        options: Further arguments of ``save``.

    Raises:
        FileExistsError: The checkpoint is a file, but a folder has its name.
        OSError: The disk is full, or the folder is not writable.
    """
    backend = get_file_backend(out_dir, backend_args=options.get('backend_args'))
    if not isinstance(backend, LocalBackend):
        save(out_dir, filename, *args, **options)
        return
    target = Path(out_dir, filename)
    token = [secrets.token_hex(4)]  # a name under which nobody can have put a link
    if together:
        broadcast_object_list(token)
    part = target.with_name(f'.{filename}.{token[0]}.part')
    try:
        if is_main_process():
            stale = {*target.parent.glob(f'.{glob.escape(filename)}.*.part')} - {part}
            for left in stale:  # of a run that was killed
                delete_checkpoint(left, backend)
        save(out_dir, part.name, *args, **options)
        if together:
            barrier()
        if is_main_process():
            _rename(part, target, backend)
    except BaseException as error:
        if isinstance(error, OSError) and error.errno and error.filename is None:  # a full disk
            error.filename = str(target)
        delete_checkpoint(part, backend)
        raise


def _rename(part: Path, target: Path, backend: Any) -> None:
    for path in (part, *part.rglob('*')):
        flush_to_disk(path)
    if target.is_dir():
        if not part.is_dir():
            raise FileExistsError(
                f'work_dir: {str(target)!r} is a folder, a checkpoint gets this name'
            )
        delete_checkpoint(target, backend)
    part.replace(target)
    flush_to_disk(target.parent)


def delete_checkpoint(path: str | Path, backend: Any) -> None:
    """Delete a checkpoint (a file, or DeepSpeed's folder) if it exists."""
    if backend.isdir(path):
        backend.rmtree(path)
    elif backend.isfile(path):
        backend.remove(path)
