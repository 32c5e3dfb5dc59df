"""Trained weights that come with the package, found by name.

``<name>.safetensors`` holds the weights in fp16, ``<name>.md`` says what they are (data and its terms, recipe,
accuracy), ``index.json`` what to build for them and the file's hash. Nothing here imports the rest of the package.
"""

import hashlib
import json
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class ShippedWeights:
    """One entry of the index.

    Attributes:
        name: What users type, e.g. ``'cpvt_tiny_gap-imagenette'``.
        about: One line for a listing.
        backbone: ``type`` and arguments of the backbone that they fit.
        config: Config of the whole model, relative to the repository's root or to ``.mim``.
        sha256: Of the file.
    """

    name: str
    about: str
    backbone: dict[str, Any]
    config: str
    sha256: str

    @property
    def config_file(self) -> Path:
        """The config, in an installed package or in the repository."""
        package = FOLDER.parent
        installed = package / '.mim' / self.config
        return installed if installed.is_file() else package.parent / self.config

    @property
    def file(self) -> Path:
        """The file, its hash checked.

        Raises:
            FileNotFoundError: It is not there.
            ValueError: It is not what was shipped.
        """
        path = FOLDER / f'{self.name}.safetensors'
        if not path.is_file():
            raise FileNotFoundError(f'{self.name!r}: {str(path)!r} is missing; install the package again')
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        if digest != self.sha256:
            raise ValueError(
                f'{self.name!r}: {str(path)!r} is damaged (SHA-256 {digest[:12]}..., not {self.sha256[:12]}...); '
                'install the package again'
            )
        return path


def shipped_weights() -> dict[str, ShippedWeights]:
    """All shipped weights by name."""
    index = FOLDER / 'index.json'
    entries = json.loads(index.read_text(encoding='utf-8')) if index.is_file() else {}
    return {name: ShippedWeights(name=name, **entry) for name, entry in sorted(entries.items())}


def shipped_file(path: str | PathLike[str]) -> Path:
    """The file that a name of shipped weights stands for; any other path as it is."""
    shipped = shipped_weights().get(str(path))
    return Path(path) if shipped is None else shipped.file


def find_shipped(name: str) -> ShippedWeights:
    """The weights of a name.

    Raises:
        ValueError: There are none of that name.
    """
    known = shipped_weights()
    if name not in known:
        raise ValueError(f'name must be one of the weights that come with the package, {list(known)}, got {name!r}')
    return known[name]
