"""Passes image sizes of padded batches from the data preprocessor to the backbone.

A detector, segmentor or classifier passes its backbone only the batch, a tensor. So the data
preprocessor announces the sizes, and the backbone looks up its batch by the tensor or by its
pixels. This also finds a batch that was cast, moved or copied. Any other input, such as a slice of
the batch, is an error.

The sizes are not stored on the tensor, because a cast would lose them. They are not stored in the
model either, because it does not know its next batch. An announcement ends with its batch. If no
backbone got the batch, its pixels are kept until the thread's next announcement, because
``batch = batch.half()`` leaves only a copy.
"""

import gc
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils.data import get_worker_info

from cpvt_backbones.errors import InputError
from cpvt_backbones.layers.tokens import Grid, is_tracing

from .padded import resolve_valid_sizes

# A number is rounded to half precision by at most 2**-8 of it (bfloat16), or to zero below 2**-14
# (float16). A batch cast down and up again is rounded twice.
RELATIVE, ABSOLUTE = 2**-7, 2**-14

Result = TypeVar('Result')


@dataclass(eq=False)
class _Announcement:
    batch: 'weakref.ref[Tensor]'
    pixels: Tensor  # shares the memory of the batch; a cast copy may have replaced that
    sizes: list[Grid]
    is_padded: bool
    thread: int
    reached: bool  # a backbone


# For the whole process: with a GPU, checkpointing calls a backbone again in a thread of autograd.
_announced: list[_Announcement] = []
_lock = threading.RLock()  # not Lock: while it is held, a batch may be deleted in the same thread
_any_padded = False  # among _announced; torch.compile makes one program for each value


def announce_sizes(batch: Tensor, sizes: Sequence[tuple[int, int]] | Tensor) -> None:
    """Tell the backbones the size that each image of a batch had before padding.

    All backbones of this package then use the sizes in forward calls with this batch. The batch may
    be cast, moved to another device or copied in between. Call this function at the end of a data
    preprocessor, as :class:`cpvt_backbones.engine.ValidSizes` does. If a model gets several batches
    in one step, also announce those without padding.

    Args:
        batch: (B, C, H, W), padded on the right and at the bottom.
        sizes: (height, width) in px of each image; a list, or integers (B, 2).

    Raises:
        ValueError: ``sizes`` does not fit the batch, or the call is made in a worker process of a
            ``DataLoader``, which has no backbone.

    Examples:
        >>> import torch
        >>> from cpvt_backbones import CPVT
        >>> from cpvt_backbones.backbones import announce_sizes
        >>> model = CPVT(arch='tiny').eval()
        >>> batch = torch.zeros(2, 3, 64, 80)
        >>> image = batch[0, :, :48] = torch.rand(3, 48, 80)
        >>> announce_sizes(batch, [(48, 80), (64, 80)])
        >>> with torch.no_grad():
        ...     (maps,) = model(batch.to(memory_format=torch.channels_last))
        ...     (alone,) = model(image[None])
        >>> torch.allclose(maps[:1, :, :3], alone, atol=1e-5)
        True
    """
    _call_eagerly(_announce_first, batch, sizes)


def announced_sizes(images: Tensor) -> list[Grid] | None:
    """Return the sizes announced for a batch, for models that change it before the backbone.

    Args:
        images: (B, C, H, W): the batch, or a copy of any floating point type, memory format or
            device.

    Returns:
        (height, width) in px of each image before padding. ``None`` for other images if no padded
        batch is waiting for a backbone.

    Raises:
        ValueError: A padded batch is waiting for a backbone, but these are other images, such as a
            part of it. Or they equal two batches that were announced with different sizes.

    Examples:
        A model with a step before the backbone:

        >>> import torch
        >>> from cpvt_backbones import CPVT
        >>> from cpvt_backbones.backbones import announce_sizes, announced_sizes
        >>> class Model(torch.nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.backbone = CPVT(arch='tiny')
        ...     def forward(self, batch):
        ...         sizes = announced_sizes(batch)
        ...         return self.backbone(batch * 2 - 1, valid_sizes=sizes)
        >>> batch = torch.rand(2, 3, 64, 80)
        >>> announce_sizes(batch, [(48, 80), (64, 80)])
        >>> announced_sizes(batch)
        [(48, 80), (64, 80)]
    """
    if not _any_padded:
        return None
    # Not is_recording(), which torch.compile turns into a constant and also calls in functions that
    # it does not compile.
    is_exporting = torch.compiler.is_compiling() and not torch.compiler.is_dynamo_compiling()
    if is_exporting or is_tracing():
        return None  # such a program is for images without padding
    return _call_eagerly(_find, images)


def _call_eagerly(function: Callable[..., Result], *values: Any) -> Result:
    """Call a function outside ``torch.compile``, because the sizes differ in each batch."""
    if 'torch._dynamo' in sys.modules:  # importing it takes a second
        function = torch.compiler.disable(function)
    return function(*values)


def _announce_first(batch: Tensor, sizes: Sequence[tuple[int, int]] | Tensor) -> None:
    if get_worker_info() is not None:
        raise InputError(
            'announce_sizes must be called in the process of the model, got a call in a worker of'
            ' the DataLoader: call it in the data preprocessor'
        )
    given = resolve_valid_sizes(sizes, len(batch), *batch.shape[2:])
    thread = threading.get_ident()
    with _lock:
        _forget(lambda one: one.thread == thread and one.batch() is None)
        _announce(batch, given, reached=False)


def _find(images: Tensor) -> list[Grid] | None:
    with _lock:
        candidates = list(_announced)
    same = [one for one in candidates if one.batch() is images]
    same = same or [one for one in candidates if _are_equal(images, one.pixels)]
    if not same:
        _refuse_others(images, candidates)
        return None
    if len({tuple(one.sizes) for one in same}) > 1:
        sizes = ' and '.join(f'{one.sizes}' for one in same)
        raise InputError(
            'valid_sizes must be passed to the backbone: the images are equal to those of'
            f' {len(same)} batches, announced with the sizes {sizes}'
        )
    with _lock:
        for one in same:
            one.reached = True
        _announce(images, same[0].sizes, reached=True)
        _forget(lambda one: one in same and one.batch() is None)
    return same[0].sizes


def _are_equal(images: Tensor, pixels: Tensor) -> bool:
    """``True`` if images equal a batch's pixels, up to rounding to half precision."""
    if images.shape != pixels.shape or images.is_meta or pixels.is_meta:
        return False
    pixels = pixels.to(images.device, torch.float32)
    images = images.detach().float()
    return torch.allclose(images, pixels, rtol=RELATIVE, atol=ABSOLUTE, equal_nan=True)


def _refuse_others(images: Tensor, candidates: Sequence[_Announcement]) -> None:
    """Raise ``ValueError`` if a padded batch of this thread is waiting for a backbone.

    A batch that no longer exists counts if the images are part of its memory.
    """
    thread = threading.get_ident()
    waiting = [
        one for one in candidates if one.thread == thread and one.is_padded and not one.reached
    ]
    lost = [one for one in waiting if _share_memory(images, one.pixels)]
    if not lost and any(one.batch() is not None for one in waiting):
        gc.collect()  # an exception that was handled may still hold a batch
        lost = [one for one in waiting if one.batch() is not None]
    if not lost:
        return
    newest = lost[-1]
    raise InputError(
        f'valid_sizes must be passed to the backbone: the sizes {newest.sizes} were announced for a'
        f' batch of shape {tuple(newest.pixels.shape)}, and the images of shape'
        f' {tuple(images.shape)} are not that batch. If the model takes parts of a batch or changes'
        ' its pixels, call backbone(images, valid_sizes=[(height, width), ...]), or run images of'
        ' one size at a time. If the images have nothing to do with that batch, delete it first'
    )


def _share_memory(images: Tensor, pixels: Tensor) -> bool:
    try:
        start = images.untyped_storage().data_ptr()
        return start == pixels.untyped_storage().data_ptr()
    except RuntimeError:  # a fake tensor has no memory
        return False


def _announce(batch: Tensor, sizes: list[Grid], *, reached: bool) -> None:
    """Add an announcement, or change that of the same tensor."""
    _forget(lambda one: one.batch() is batch)

    def end(ended: Any) -> None:
        with _lock:
            _forget(lambda one: one.batch is ended and one.reached)

    _announced.append(
        _Announcement(
            batch=weakref.ref(batch, end),
            pixels=batch.data,  # a view, such as detach() makes, would hold the batch
            sizes=sizes,
            is_padded=set(sizes) != {tuple(batch.shape[2:])},
            thread=threading.get_ident(),
            reached=reached,
        )
    )
    _note_padded()


def _forget(is_ended: Callable[[_Announcement], bool]) -> None:
    # Copy the list, because batches that are deleted meanwhile also call this function.
    for one in list(_announced):
        if is_ended(one) and one in _announced:
            _announced.remove(one)
    _note_padded()


def _note_padded() -> None:
    global _any_padded
    _any_padded = any(one.is_padded for one in list(_announced))
