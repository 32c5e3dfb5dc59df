"""The page's controls, and what they show."""

import html
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import app_views as views
import gradio as gr
import numpy as np
from example_images import examples
from gradio.image_utils import encode_image_to_base64

TITLE = """# CPVT: one model, images of any size
See what a vision transformer with convolutional position encoding makes of your image, and what
changes with the image's size."""
FEATURES, PREDICTION, SIZES = 'Features', 'Prediction', 'Several sizes'
ABOUT_EXAMPLES = """Choose an example, or drop your own image on the one below. (Temple: photograph
by danielbuechele, CC BY 2.0; blood and street: drawn.)"""
ABOUT_FEATURES = """Places of similar features have similar colours: red, green and blue are the
three principal components. No classes are needed: any image will do."""
ABOUT_ATTENTION = """Where a layer attends to from a point, mean of its heads: the more orange, the
more (the root of the weight). Click in the picture to choose the point."""
ABOUT_SIZES = """One set of weights, one image, several sizes, without fine-tuning. A size is good
where the model's score on its test set is at least 90 % of its best."""
# On a narrow screen the results are below what was tapped.
TO_RESULTS = """() => { if (innerWidth < 800)
    document.getElementById('results').scrollIntoView({behavior: 'smooth'}); }"""
QUICK: dict[str, Any] = dict(api_visibility='private', show_progress='hidden')
SHOWN: dict[str, Any] = dict(
    show_label=False, interactive=False, buttons=['download', 'fullscreen']
)
SIDE = 'Longer side of the image in the model, px'
PERCENT = ('Layer: % of the depth', 'Point: % from the left', 'Point: % from the top')
START = (512, 50, 50, 50)  # px and %, of the sliders of features

Values = dict[Any, Any]  # by component


class Page:
    """The page for models by name, as ``blocks``.

    It opens with the features that the first model has of the first example.
    """

    def __init__(self, models: Mapping[str, views.Model]) -> None:
        self.models, self.examples = models, examples()
        with gr.Blocks(title='CPVT on images of any size', analytics_enabled=False) as self.blocks:
            self.image = gr.State(self.examples[0].image)  # (H, W, 3), RGB
            self.view, self.found = gr.State(FEATURES), gr.State([])
            gr.Markdown(TITLE)
            with gr.Row():
                with gr.Column(scale=1, min_width=300):
                    self._add_inputs(next(iter(models.values())))
                with gr.Column(scale=2, min_width=300, elem_id='results'):
                    self._add_results(next(iter(models.values())))
            self._connect()

    def _add_inputs(self, model: views.Model) -> None:
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
            format='png',
            sources=['upload', 'clipboard'],
            height=260,
            buttons=[],
        )
        # The file as it is: Gradio's own preprocessing opens it, with other bounds than the reader.
        self.upload.preprocess = lambda data: None if data is None else data.path
        self.name = gr.Dropdown([*self.models], value=model.name, label='Model', filterable=False)
        self.about = gr.Markdown(model.describe())
        self.stop = gr.Button('Stop', size='sm')

    def _add_results(self, model: views.Model) -> None:
        features, attention, facts = views.explain(model, self.examples[0].image, *START)
        with gr.Tabs() as self.tabs:
            with gr.Tab(FEATURES):
                gr.Markdown(ABOUT_FEATURES)
                self.features = gr.HTML(to_html(features))
                gr.Markdown(ABOUT_ATTENTION)
                self.attention = gr.Image(attention, alt_text='Attention', **SHOWN)
                self.sliders = [gr.Slider(32, views.MAX_SIDE, START[0], step=32, label=SIDE)]
                with gr.Row():
                    for label, value in zip(PERCENT, START[1:], strict=True):
                        self.sliders.append(gr.Slider(0, 100, value, step=1, label=label))
            with gr.Tab(PREDICTION):
                self.prediction = gr.Image(alt_text='Prediction', **SHOWN)
                self.table = gr.Markdown()
                label = f'{SIDE}; 0: the test scale'
                self.side = gr.Slider(0, views.MAX_SIDE, 0, step=32, label=label)
            with gr.Tab(SIZES):
                gr.Markdown(ABOUT_SIZES)
                self.sizes = gr.HTML()
        lowest = views.LOWEST_SCORE
        self.score = gr.Slider(lowest, 1, 0.5, step=0.05, label='Lowest score', visible=False)
        self.facts = gr.Markdown(facts)

    def _connect(self) -> None:
        loaded = [self.upload, self.image]
        given = self.upload.upload(self.read, self.upload, loaded, **QUICK)
        chosen = [*loaded, self.name, self.about]
        picked = self.gallery.select(self.choose, None, chosen, **QUICK)
        switched = self.tabs.select(self.switch, None, self.view, **QUICK)
        pointed = self.attention.select(self.point, self.image, self.sliders[2:], **QUICK)
        events = [event.success for event in (given, picked, switched, pointed)]
        events += [self.name.input, *(slider.release for slider in (*self.sliders, self.side))]
        data = {self.view, self.name, self.image, self.found, self.score, self.side, *self.sliders}
        shown = [self.about, self.features, self.attention, self.prediction, self.table, self.sizes]
        shown += [self.score, self.facts, self.found]
        jobs = [
            event(
                self.run,
                data,
                shown,
                concurrency_id='model',  # one at a time, of all users
                concurrency_limit=1,
                trigger_mode='always_last',
                show_progress_on=[self.facts],
                api_visibility='private',
            )
            for event in events
        ]
        self.stop.click(None, cancels=jobs)
        self.score.release(self.draw, data, shown, **QUICK)
        self.upload.clear(lambda: None, None, self.image, **QUICK)
        for event in (given, picked):
            event.success(js=TO_RESULTS)

    def read(self, file: str) -> tuple[np.ndarray, np.ndarray]:
        """An uploaded image as the models see it, which the page then shows, too."""
        with mistakes_shown():
            image = views.read_upload(file)
        Path(file).unlink(missing_ok=True)
        return image, image

    def choose(self, event: gr.SelectData) -> tuple[np.ndarray, np.ndarray, str, str]:
        """An example, its model and what that is for."""
        one = self.examples[event.index]
        return one.image, one.image, one.model, self.models[one.model].describe()

    def switch(self, event: gr.SelectData) -> str:
        """The view of a tab."""
        return event.value

    def point(self, image: np.ndarray, event: gr.SelectData) -> list[int]:
        """Where the picture of the attention was clicked, in % from the left and from the top."""
        size = views.shown_size(image)
        return [round(100 * at / side) for at, side in zip(event.index, size, strict=True)]

    def run(self, data: Values) -> Iterator[Values]:
        """What one view shows; of several sizes one after the other."""
        model, image, view = self.models[data[self.name]], data[self.image], data[self.view]
        if image is None:
            raise gr.Error('Choose an image.', print_exception=False)
        with mistakes_shown():
            boxes = view != FEATURES and model.predictor.task == 'detection'
            yield {self.score: gr.Slider(visible=boxes), self.about: model.describe()}
            if view == FEATURES:
                chosen = [data[slider] for slider in self.sliders]
                features, attention, facts = views.explain(model, image, *chosen)
                yield {
                    self.features: to_html(features),
                    self.attention: attention,
                    self.facts: facts,
                }
                return
            side = data[self.side]
            scales = [(side, side) if side else 'config']
            if view == SIZES:
                scales = views.scales_to_compare(model, image)
            data[self.found] = found = []
            for scale in scales:
                found.append(views.predict(model, image, scale))
                facts = found[-1]['facts']
                if view == SIZES:
                    facts = f'Sizes: {len(found)} of {len(scales)}.'
                yield {self.found: found, self.facts: facts, **self.draw(data)}

    def draw(self, data: Values) -> Values:
        """What was found, of boxes those of at least a score; the model does not run."""
        model, image = self.models[data[self.name]], data[self.image]
        found = [views.keep_scores(one, data[self.score]) for one in data[self.found]]
        pictures = [views.draw(model, image, one) for one in found]
        if data[self.view] == PREDICTION and found:
            return {self.prediction: pictures[0], self.table: views.to_table(model, found[0])}
        known = [one for one in self.examples if one.model == model.name]
        truth = next((one for one in known if np.array_equal(one.image, image)), None)
        small = [picture.resize(views.shown_size(image)) for picture in pictures]
        captions = [views.caption(model, one, truth) for one in found]
        return {self.sizes: to_html(zip(small, captions, strict=True))}


def to_html(pictures: Iterable[tuple[Any, str]]) -> str:
    """Pictures with their captions as HTML, the pictures inside of it."""
    figures = ''
    for picture, caption in pictures:
        image = f'<img src="{encode_image_to_base64(picture)}" alt="">'
        figures += f'<figure>{image}<figcaption>{html.escape(caption)}</figcaption></figure>'
    return f'<div class="figures">{figures}</div>'


@contextmanager
def mistakes_shown() -> Iterator[None]:
    """Show a ``ValueError`` on the page."""
    try:
        yield
    except ValueError as error:
        raise gr.Error(str(error), print_exception=False) from error
