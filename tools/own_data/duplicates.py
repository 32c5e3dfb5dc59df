"""Pictures that resemble each other."""

from collections.abc import Mapping, Sequence

import cv2
import numpy as np

HASH_SIDE = 16
# of the 256 bits of two hashes may differ; photographs of different things differ in 59 and more
NEAR = 32
HASHES = 1 << 17  # that OpenCV's matcher gets at a time


def difference_hash(pixels: np.ndarray) -> bytes:
    """dHash of 256 bits: whether each of 16 x 16 areas is darker than the area to its right.

    Args:
        pixels: (H, W, channels), of which three count.
    """
    size = HASH_SIDE + 1, HASH_SIDE
    small = cv2.resize(pixels[..., :3], size, interpolation=cv2.INTER_AREA)
    grey = np.atleast_3d(small).mean(axis=2)  # OpenCV drops the axis of a single channel
    return np.packbits(grey[:, :-1] < grey[:, 1:]).tobytes()


def near_duplicates(train: Mapping[str, bytes], val: Mapping[str, bytes]) -> list[tuple[str, str]]:
    """Pairs of a validation image and the training image that looks like it most, if at most
    ``NEAR`` bits differ.

    Args:
        train: :func:`difference_hash` of each training image, by name; so ``val``.
    """
    if not train or not val:
        return []
    matcher = cv2.BFMatcher(cv2.NORM_HAMMING)
    names, others = [*train], [*val]
    queries = _as_rows([*val.values()])
    best: dict[int, tuple[float, int]] = {}
    for start in range(0, len(names), HASHES):
        part = _as_rows([train[name] for name in names[start : start + HASHES]])
        for match in matcher.match(queries, part):
            found = match.distance, start + match.trainIdx
            best[match.queryIdx] = min(found, best.get(match.queryIdx, found))
    pairs = []
    for index, (distance, other) in sorted(best.items()):
        if distance <= NEAR:
            pairs.append((others[index], names[other]))
    return pairs


def _as_rows(hashes: Sequence[bytes]) -> np.ndarray:
    return np.frombuffer(b''.join(hashes), np.uint8).reshape(len(hashes), -1)
