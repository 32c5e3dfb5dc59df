"""The calls of the API: one table of which the server parses requests and writes the
documentation.
"""

import html
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple

from . import work

ROW = '<tr><td><code>{}</code></td><td>{}</td><td>{}</td><td>{}</td></tr>'
HEAD = (
    '<thead><tr><th>parameter</th><th>accepts</th><th>default</th><th>what it is</th></tr></thead>'
)


class Field(NamedTuple):
    """A number that a call takes; its default is ``...`` where one must be given."""

    kind: type
    default: Any
    low: float
    high: float
    about: str

    @property
    def accepts(self) -> str:
        """What is accepted, in words."""
        return f'{"an integer" if self.kind is int else "a number"} in [{self.low}, {self.high}]'

    def parse(self, name: str, text: str | None) -> Any:
        """The value of a text, the default for ``None``.

        ``ValueError`` for one that is not accepted.
        """
        if text is None and self.default is not ...:
            return self.default
        try:
            value = self.kind(text)
        except (TypeError, ValueError):
            value = None
        if value is None or not self.low <= value <= self.high:
            raise ValueError(
                f'{name} must be {self.accepts}, got {text if text is None else text[:40]!r}'
            )
        return value


class Call(NamedTuple):
    """What runs, the numbers it takes, and what it answers."""

    run: Callable[..., dict[str, Any]]
    fields: Mapping[str, Field]
    answers: str
    needs_model: bool = True

    def parse(
        self, given: Mapping[str, str], models: Collection[str]
    ) -> tuple[str | None, dict[str, Any]]:
        """Name of the model, by default the first, and the numbers.

        ``ValueError`` for what is not accepted.
        """
        known = [*(['model'] if self.needs_model else []), *self.fields]
        if unknown := [name[:40] for name in given if name not in known]:
            raise ValueError(
                f'{unknown[0]!r} is not a parameter; known are {", ".join(known) or "none"}'
            )
        model = given.get('model', next(iter(models))) if self.needs_model else None
        if model is not None and model not in models:
            raise ValueError(f'model must be one of {", ".join(models)}, got {model[:80]!r}')
        return model, {
            name: field.parse(name, given.get(name)) for name, field in self.fields.items()
        }


LONGEST = 10**6
SEEN = (
    'longer side, in px, at which the model sees the image, at most four times its own; without it'
    ' the test scale'
)
PREDICTED = {
    'size': Field(int, None, work.SMALLEST_SIDE, LONGEST, SEEN),
    'score': Field(float, 0.3, 0, 1, 'minimum score of a box'),
    'tile': Field(
        int,
        0,
        0,
        2048,
        'side of tiles in px, at least 128; 0: tiles only for images that one forward call does not'
        ' hold',
    ),
}
SIDE = Field(
    int,
    512,
    work.EXPLAINED[0],
    work.EXPLAINED[-1],
    'longer side, in px, at which the backbone sees the image',
)
EXPLAINED = {
    'side': SIDE,
    'x': Field(int, ..., 0, LONGEST, 'of a pixel of the image'),
    'y': Field(int, ..., 0, LONGEST, 'of a pixel of the image'),
    'layer': Field(int, -1, -999, 999, 'number of the attention layer, negative from the end'),
}
CALLS = {
    'predict': Call(
        work.predict,
        PREDICTED,
        'sizes of the image and of what the model saw, grids of tokens, seconds, classes with their'
        ' colours; of a detector boxes and COCO JSON; of a segmentor overlay, a PNG in base64 whose'
        ' pixels are the classes',
    ),
    'sizes': Call(
        work.compare_sizes,
        PREDICTED,
        f'sizes: the same at {work.FACTORS} times the size; objects: the score of each object at'
        " each of them (of a segmentor the class's share of the pixels), null where it was not"
        ' found',
    ),
    'attention': Call(
        work.explain_attention, EXPLAINED, 'heads: weight of each cell of the grid of keys'
    ),
    'features': Call(
        work.show_features,
        dict(side=SIDE),
        'levels: their grids, and PNG in base64 with a pixel a cell',
    ),
    'upright': Call(
        work.show_upright, {}, 'picture: PNG in base64, at most 2,048 px', needs_model=False
    ),
}


def document_calls() -> str:
    """The table as HTML."""
    parts = []
    for name, call in CALLS.items():
        rows = [ROW.format('model', 'a name of <code>GET /api/models</code>', 'the first', '')]
        rows = rows if call.needs_model else []
        for key, field in call.fields.items():
            default = {None: 'none', ...: 'required'}.get(field.default, str(field.default))
            rows.append(ROW.format(key, field.accepts, default, html.escape(field.about)))
        about = html.escape(f'{call.run.__doc__} Answers {call.answers}.')
        table = f'<table>{HEAD}<tbody>{"".join(rows)}</tbody></table>' if rows else ''
        region = (
            '<div class="scroll" tabindex="0" role="region" aria-label="Parameters of'
            f' {name}">{table}</div>'
        )
        parts.append(
            f'<h2 id="{name}"><code>POST'
            f' /api/{name}</code></h2><p>{about}</p>{region if rows else ""}'
        )
    return '\n'.join(parts)
