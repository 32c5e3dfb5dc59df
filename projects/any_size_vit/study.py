"""The comparison: variants of one pretrained ViT, adapted alike, tested at many sizes."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from positional_encoding.runs import Record, RunFolder, add_commit, environment, write_json
from torch import Tensor

from cpvt_backbones import CPVT
from cpvt_backbones.checkpoints import atomic_write, read_checkpoint

from .adapt import Recipe, adapt
from .evaluate import score
from .images import choose_by_class, decode, prepare
from .stored import stored_array
from .student import POSITIONS, TABLE, Source

TEACHER_SIDE = 224
OTHER = 'other_data'
"""Folder within a study's, of the tests on another data set."""
GALLERY = 10
QUERIES = 20
"""Validation images of a class in the gallery, and those that are queries."""
TEST_SIZES = {64: 1, 96: 1, 160: 1, 224: 2, 320: 4, 448: 8, 640: 8}
"""Side in px to the distance between the queries that are tested at it: all, every second,
fourth, or eighth.
"""


class AdaptRun(NamedTuple):
    """A student: ``training`` is ``'mixed'`` sizes, ``'long'`` (the same with four times the
    steps), ``'single'``, or
    ``'untrained'``.
    """

    variant: str
    training: str
    seed: int

    @property
    def name(self) -> str:
        """Name of the run's folder."""
        return f'{self.variant}_{self.training}_seed-{self.seed}'


@dataclass
class Study(RunFolder):
    """Adaptations of one model.

    Args:
        plan: ``data`` (folder with train/ and val/ of class folders), ``images`` of a class that
            students are adapted on, ``sizes`` and ``single`` (mixed and single sizes), ``steps``,
            and ``precision``.
        runs: In order of importance.
        source: The pretrained model.
    """

    runs: Sequence[AdaptRun]
    source: Source

    def pending(self) -> tuple[list[AdaptRun], int]:
        return [run for run in self.runs if self.record(run) is None], 0

    @property
    def precision(self) -> torch.dtype:
        """Of teacher, training and test."""
        return torch.bfloat16 if self.plan['precision'] == 'bf16' else torch.float32

    def recipe(self, run: AdaptRun) -> Recipe:
        """The recipe of a run."""
        sizes = [self.plan['single']] if run.training == 'single' else self.plan['sizes']
        steps = self.plan['steps'] * (4 if run.training == 'long' else 1)
        return Recipe(sizes=tuple(sizes), steps=steps, seed=run.seed)

    def trained(self, run: AdaptRun, **options: Any) -> CPVT:
        """The student of a finished run; ``options`` are arguments of the backbone."""
        model = self.source.build(POSITIONS[run.variant], **options).eval()
        if run.training != 'untrained':
            model.load_state_dict(
                read_checkpoint(self.folder / run.name / 'checkpoint.pth')['state_dict']
            )
        return model

    def run_model(
        self, model: Callable[[Tensor], Any], pixels: Tensor, side: int | tuple[int, int]
    ) -> Tensor:
        """Output of a model for images at a size, without gradients."""
        with (
            torch.inference_mode(),
            torch.autocast('cpu', self.precision, enabled=self.precision != torch.float32),
        ):
            return model(prepare(pixels, side, self.source.mean, self.source.std))

    def tokens(self, pixels: Tensor) -> np.ndarray:
        """The teacher's tokens of the images that students are adapted on."""
        teacher = self.source.build(TABLE).eval()
        shape = (len(pixels), (TEACHER_SIDE // teacher.out_strides[0]) ** 2 + 1, teacher.embed_dims)

        def compute(start: int, end: int) -> Tensor:
            print(f'teacher: image {start} of {len(pixels)}', flush=True)
            return self.run_model(teacher, pixels[start:end], TEACHER_SIDE)[0]

        return stored_array(self.folder / 'teacher_tokens.npy', shape, compute)

    def features(self, model: CPVT, file: Path, pixels: Tensor, side: int) -> np.ndarray:
        """Class token's features at a size."""
        shape = (len(pixels), self.source_width)
        return stored_array(
            file, shape, lambda a, b: self.run_model(model, pixels[a:b], side)[0][:, 0], chunk=10
        )

    @property
    def source_width(self) -> int:
        """Width of the features."""
        return self.source.weights['cls_token'].shape[-1]

    def _train(self, run: AdaptRun) -> Record:
        folder = self.folder / run.name
        folder.mkdir(exist_ok=True)
        commits = add_commit(folder / 'commits.txt')
        training, testing = (
            Clock(folder / f'{stage}_cpu_seconds.txt') for stage in ('training', 'testing')
        )

        def note(text: str) -> None:
            print(f'{run.name}: {text}', flush=True)

        torch.manual_seed(run.seed)
        student = self.source.build(POSITIONS[run.variant])
        recipe, losses = self.recipe(run), []
        if run.training == 'untrained':
            recipe = replace(recipe, steps=0)
        else:
            pixels = decode(
                [file for file, _ in choose_by_class(self._data / 'train', self.plan['images'])],
                128,
            )
            targets = self.tokens(pixels)
            checkpoint = folder / 'checkpoint.pth'
            with training.running(note) as tell:
                losses = adapt(
                    student,
                    self.source,
                    pixels,
                    targets,
                    recipe,
                    checkpoint,
                    precision=self.precision,
                    note=tell,
                )
        with testing.running(note) as tell:
            rows = self.test(student.eval(), folder, tell)
        loss = round(float(np.mean(losses[-len(recipe.sizes) * 10 :])), 4) if losses else None
        shared = dict(precision=self.plan['precision'], steps=recipe.steps, loss=loss)
        shared |= dict(training_s=round(training.seconds), testing_s=round(testing.seconds))
        record = dict(
            run=run._asdict(),
            rows=[shared | row for row in rows],
            commits=commits,
            environment=environment(),
        )
        text = str(
            asdict(replace(recipe, seed=0)) | dict(plan=self.plan, position=POSITIONS[run.variant])
        )
        record['config'] = text
        write_json(folder / 'record.json', record)
        return record

    @property
    def _data(self) -> Path:
        return Path(self.plan['data'])

    def probe(self, runs: Sequence[AdaptRun], data: Path) -> None:
        """Test finished runs on another data set, up to the teacher's size.

        Records are in the folder :data:`OTHER`.

        Args:
            runs: Those of which the study has no record are left out.
            data: Folder with val/ of class folders, of :data:`GALLERY` + :data:`QUERIES` images or
                more.
        """
        other = replace(self, folder=self.folder / OTHER, plan=self.plan | dict(data=str(data)))
        for run in runs:
            if (record := self.record(run)) is None or other.record(run) is not None:
                continue
            folder = other.folder / run.name
            folder.mkdir(exist_ok=True)
            commits = add_commit(folder / 'commits.txt')
            print(run.name, flush=True)
            rows = other.test(self.trained(run), folder, largest=TEACHER_SIDE)
            rows = [dict(data=data.name, precision=self.plan['precision']) | row for row in rows]
            record |= dict(rows=rows, commits=commits, environment=environment())
            write_json(folder / 'record.json', record)

    def test_images(self) -> list[tuple[Tensor, np.ndarray]]:
        """Images, uint8 (N, 3, S, S), and classes, of the gallery and of the queries."""
        chosen = choose_by_class(self._data / 'val', GALLERY + QUERIES)
        parts = [split(chosen, gallery) for gallery in (True, False)]
        return [
            (decode([file for file, _ in part], TEACHER_SIDE), np.array([k for _, k in part]))
            for part in parts
        ]

    def test(
        self,
        model: CPVT,
        folder: Path,
        note: Callable[[str], None] = print,
        largest: int | None = None,
    ) -> list[dict[str, Any]]:
        """A row of results for each size, or each that is not above ``largest``."""
        (gallery, gallery_labels), (queries, labels) = self.test_images()
        teacher = self.source.build(TABLE).eval()
        wanted = self.features(teacher, self.folder / 'teacher_queries.npy', queries, TEACHER_SIDE)
        known = self.features(model, folder / 'gallery.npy', gallery, TEACHER_SIDE)
        rows = []
        for side, step in TEST_SIZES.items():
            if largest is not None and side > largest:
                continue
            found = self.features(model, folder / f'queries_{side}.npy', queries[::step], side)
            row = score(known, gallery_labels, found, labels[::step], wanted[::step])
            rows.append(dict(size=side) | row)
            hits = row['neighbours'].count('1') / row['queries']
            note(f'{side} px: nearest neighbours {100 * hits:.1f} % of {row["queries"]}')
        return rows


def split(chosen: Sequence[tuple[Path, int]], gallery: bool) -> list[tuple[Path, int]]:
    """Gallery or queries of images in the order of their classes: every third image is of the
    gallery.
    """
    period = (GALLERY + QUERIES) // GALLERY
    return [image for index, image in enumerate(chosen) if (index % period == 0) == gallery]


class Clock:
    """CPU seconds of a stage, of this process and of those that worked on it before.

    Kept in a file.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self.seconds = float(file.read_text()) if file.is_file() else 0.0

    @contextmanager
    def running(self, note: Callable[[str], None]) -> Iterator[Callable[[str], None]]:
        """Count what is computed within.

        Yields ``note`` that also writes the seconds so far to the file.
        """
        before, begun = self.seconds, time.process_time()

        def tell(text: str = '') -> None:
            self.seconds = before + time.process_time() - begun
            with atomic_write(self.file) as stream:
                stream.write(f'{self.seconds:.1f}'.encode())
            if text:
                note(text)

        yield tell
        tell()
