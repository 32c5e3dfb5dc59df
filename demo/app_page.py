"""The page's controls, and what they show."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import app_views as views
import gradio as gr
from example_images import examples

TITLE = """# CPVT: one model, images of any size
See what a vision transformer with convolutional position encoding makes of your image, and what
changes with the image's size."""
FEATURES, PREDICTION, SIZES = 'Features', 'Prediction', 'Several sizes'
ABOUT_EXAMPLES = """Choose an example, or drop your own image on the one below. (Temple: photograph
by danielbuechele, CC BY 2.0; blood and street: drawn.)"""
ABOUT_FEATURES = """Places of similar features have similar colours: red, green and blue are the
three principal components. No classes are needed: any image will do."""
ABOUT_ATTENTION = """Where a layer attends to from a point: the more orange, the more (the root of
the weight). Click in the picture to choose the point."""
ABOUT_SIZES = """One set of weights, one image, several sizes, without fine-tuning. A size is good
where the model's score on its test set is at least 90 % of its best."""
# On a narrow screen the results are below what was tapped.
TO_RESULTS = """() => { if (innerWidth < 800)
    document.getElementById('results').scrollIntoView({behavior: 'smooth'}); }"""
QUICK: dict[str, Any] = dict(api_visibility='private', show_progress='hidden')
SHOWN: dict[str, Any] = dict(
    interactive=False, show_label=False, buttons=['download', 'fullscreen']
)
SIDE = 512  # px, at which features are shown first


class Page:
    """The page for models by name, as ``blocks``.

    It opens with the features that the first model has of the first example.
    """

    def __init__(self, models: Mapping[str, views.Model]) -> None:
        self.models, self.examples = models, examples()
        self.first = next(iter(models))
        with gr.Blocks(title='CPVT on images of any size', analytics_enabled=False) as self.blocks:
            # (H, W, 3), RGB; its number if it is an example; what the model has found.
            self.image, self.example = gr.State(self.examples[0].image), gr.State(0)
            self.view, self.found = gr.State(FEATURES), gr.State()
            gr.Markdown(TITLE)
            with gr.Row():
                with gr.Column(scale=1, min_width=300):
                    self._add_inputs()
                with gr.Column(scale=2, min_width=300, elem_id='results'):
                    self._add_results()
            self._connect()

    def _add_inputs(self) -> None:
        gr.Markdown(ABOUT_EXAMPLES)
        self.gallery = gr.Gallery(
            [(one.image, one.name) for one in self.examples],
            label='Examples',
            show_label=False,
            columns=len(self.examples),
            height=150,
            object_fit='cover',
            allow_preview=False,
            interactive=False,
            buttons=[],
        )
        self.upload = gr.Image(
            self.examples[0].image,
            label='Image',
            show_label=False,
            type='filepath',
            format='png',
            sources=['upload', 'clipboard'],
            height=260,
            buttons=[],
        )
        # The file as it is: Gradio's own preprocessing opens it, with other bounds than the reader.
        self.upload.preprocess = lambda data: None if data is None else data.path
        self.name = gr.Dropdown([*self.models], value=self.first, label='Model', filterable=False)
        self.about = gr.Markdown(self.models[self.first].describe())
        self.stop = gr.Button('Stop', size='sm')

    def _add_results(self) -> None:
        name, image = self.first, self.examples[0].image
        layers, heads = views.count_heads(self.models[name])
        middle = (layers + 1) // 2
        pictures, attended, text = self._explain(name, image, SIDE, middle, 0, 50, 50)
        label = 'Longer side of the image in the model, px'
        with gr.Tabs() as self.tabs:
            with gr.Tab(FEATURES):
                gr.Markdown(ABOUT_FEATURES)
                self.features = gr.HTML(pictures)
                gr.Markdown(ABOUT_ATTENTION)
                self.attention = gr.Image(
                    attended, label='Attention', alt_text='Attention', **SHOWN
                )
                self.seen = gr.Slider(*views.SIDES, SIDE, step=32, label=label)
                with gr.Row():
                    self.layer = gr.Slider(1, layers, middle, step=1, label='Attention layer')
                    self.head = gr.Slider(0, heads, 0, step=1, label='Head, 0: mean of all')
                    self.across = gr.Slider(0, 100, 50, step=1, label='Point: % from the left')
                    self.down = gr.Slider(0, 100, 50, step=1, label='Point: % from the top')
            with gr.Tab(PREDICTION):
                self.prediction = gr.Image(label='Prediction', alt_text='Prediction', **SHOWN)
                self.table = gr.HTML()
                label += '; 0: the test scale'
                self.side = gr.Slider(0, views.SIDES[1], 0, step=32, label=label)
            with gr.Tab(SIZES):
                gr.Markdown(ABOUT_SIZES)
                self.sizes = gr.HTML()
        lowest = views.LOWEST_SCORE
        self.score = gr.Slider(lowest, 1, 0.5, step=0.05, label='Lowest score', visible=False)
        self.facts = gr.Markdown(text)

    def _connect(self) -> None:
        loaded = [self.upload, self.image, self.example]
        described = [self.about, self.layer, self.head]
        file = self.upload.upload(self.read, self.upload, loaded, **QUICK)
        picked = self.gallery.select(self.choose, None, [*loaded, self.name], **QUICK)
        scrolled = [
            event.success(self.describe, self.name, described, **QUICK)
            .success(js=TO_RESULTS)
            .success
            for event in (file, picked)
        ]
        changed = self.name.input(self.describe, self.name, described, **QUICK)
        switched = self.tabs.select(self.switch, None, self.view, **QUICK)
        pointed = self.attention.select(self.point, self.image, [self.across, self.down], **QUICK)
        explained = [self.seen, self.layer, self.head, self.across, self.down]
        events = [*scrolled, changed.success, switched.success, pointed.success]
        events += [control.release for control in (*explained, self.side)]
        data = [self.view, self.name, self.image, self.example]
        results = [self.prediction, self.table, self.sizes]
        shown = [self.features, self.attention, self.facts, self.found, self.score, *results]
        jobs = [
            event(
                self.run,
                [*data, self.side, self.score, *explained],
                shown,
                concurrency_id='model',  # one at a time, of all users
                concurrency_limit=1,
                trigger_mode='always_last',
                show_progress_on=[self.facts],
                api_visibility='private',
            )
            for event in events
        ]
        self.upload.clear(lambda: (None, None), None, [self.image, self.example], **QUICK)
        self.score.release(self.draw, [*data, self.found, self.score], results, **QUICK)
        self.stop.click(None, cancels=jobs)

    def read(self, file: str) -> tuple[Any, ...]:
        """An uploaded image as the models see it, which the page then shows, too."""
        image = _refuse(views.read_upload, file)
        Path(file).unlink(missing_ok=True)
        return image, image, None

    def choose(self, event: gr.SelectData) -> tuple[Any, ...]:
        """An example and its model."""
        one = self.examples[event.index]
        return one.image, one.image, event.index, one.model

    def describe(self, name: str) -> tuple[Any, ...]:
        """What a model is for, and its layers and heads."""
        layers, heads = views.count_heads(self.models[name])
        layer = gr.Slider(maximum=layers, value=(layers + 1) // 2)
        return self.models[name].describe(), layer, gr.Slider(maximum=heads, value=0)

    def switch(self, event: gr.SelectData) -> str:
        """The view of a tab."""
        return event.value

    def point(self, image: Any, event: gr.SelectData) -> tuple[int, int]:
        """Where the picture of the attention was clicked, in % from the left and from the top."""
        height, width = views.enlarged_size(image)
        return round(100 * event.index[0] / width), round(100 * event.index[1] / height)

    def run(
        self,
        view: str,
        name: str,
        image: Any,
        example: int | None,
        side: int,
        score: float,
        *explained: int,
    ) -> Iterator[dict[Any, Any]]:
        """What one view shows; of several sizes one after the other."""
        if image is None:
            raise gr.Error('Choose an image.', print_exception=False)
        model = self.models[name]
        boxes = view != FEATURES and model.predictor.task == 'detection'
        yield {self.score: gr.Slider(visible=boxes)}
        if view == FEATURES:
            results = self._explain(name, image, *explained)
            yield dict(zip((self.features, self.attention, self.facts), results, strict=True))
        elif view == PREDICTION:
            found, text = _refuse(views.predict, model, image, side)
            pictures = self._pictures(view, name, image, example, found, score)
            yield {self.found: found, self.facts: text, **pictures}
        else:
            for number, results in enumerate(views.predict_sizes(model, image), start=1):
                pictures = self._pictures(view, name, image, example, results, score)
                text = f'Sizes: {number} of {len(views.FACTORS)}.'
                yield {self.found: [*results], self.facts: text, **pictures}

    def draw(
        self, view: str, name: str, image: Any, example: int | None, found: Any, score: float
    ) -> dict[Any, Any]:
        """What was found, of boxes those of at least a score; the model does not run."""
        return {} if found is None else self._pictures(view, name, image, example, found, score)

    def _pictures(
        self, view: str, name: str, image: Any, example: int | None, found: Any, score: float
    ) -> dict[Any, Any]:
        model = self.models[name]
        if view == SIZES:
            truth = None if example is None else self.examples[example]
            truth = None if truth is None or truth.model != name else truth
            pictures = views.draw_sizes(model, image, found, score, truth)
            return {self.sizes: views.to_html(pictures)}
        chosen = views.keep_scores(found, score)
        picture, table = views.draw(model, image, chosen), views.list_classes(model, chosen)
        return {self.prediction: picture, self.table: table}

    def _explain(self, name: str, image: Any, side: int, *which: int) -> tuple[Any, ...]:
        pictures, text = views.show_features(self.models[name], image, side)
        attention, more = views.show_attention(self.models[name], image, side, *which)
        return views.to_html(pictures), attention, f'{text}\n\n{more}'


def _refuse(call: Callable[..., Any], *arguments: Any) -> Any:
    """The result of a call, whose ``ValueError`` is shown on the page."""
    try:
        return call(*arguments)
    except ValueError as error:
        raise gr.Error(str(error), print_exception=False) from error
