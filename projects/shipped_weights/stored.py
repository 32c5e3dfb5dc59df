"""Arrays on disk that are computed once, a chunk at a time.

An interruption loses the current chunk.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from filelock import FileLock
from torch import Tensor

from cpvt_backbones.checkpoints import atomic_write
from cpvt_backbones.errors import InputError


def stored_array(
    file: Path, shape: Sequence[int], compute: Callable[[int, int], Tensor], *, chunk: int = 16
) -> np.ndarray:
    """The array in ``file``, mapped into memory; what is missing is computed first.

    Processes share the work of computing by waiting for each other.

    Args:
        file: ``.npy`` file; the number of finished rows stands beside it.
        shape: Of the array, fp16; the first dimension is that of the rows.
        compute: Rows from the first index up to the second.
        chunk: Rows computed at once.

    Raises:
        InputError: The file has another shape.
    """
    counter = file.with_suffix('.rows')
    file.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(file.with_suffix('.lock')):
        begun = counter.is_file()
        mode = 'r+' if begun else 'w+'
        array = np.lib.format.open_memmap(
            file, mode, None if begun else np.float16, None if begun else tuple(shape)
        )
        if array.shape != tuple(shape):
            raise InputError(
                f'file: {file} holds an array of {array.shape}, got {tuple(shape)}; use another'
                ' folder'
            )
        for start in range(int(counter.read_text()) if begun else 0, shape[0], chunk):
            end = min(start + chunk, shape[0])
            array[start:end] = compute(start, end).half().cpu().numpy()
            array.flush()
            with atomic_write(counter) as stream:
                stream.write(str(end).encode())
    return np.lib.format.open_memmap(file, 'r')
