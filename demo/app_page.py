"""The page: its controls, what they show, and the server."""

import html
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import app_views as views
import gradio as gr
import numpy as np
from example_images import examples
from gradio.image_utils import encode_image_to_base64
from gradio.utils import get_upload_folder
from gradio_client.utils import is_file_obj, traverse
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.responses import Response

from cpvt_backbones.errors import InputError
from cpvt_backbones.inference import ImageError

TITLE = """# CPVT: one model, images of any size
Drop an image, or choose an example: see what a model finds, what its backbone sees, and how both
change with the size."""
FEATURES, PREDICTION, SIZES = 'Features', 'Prediction', 'Several sizes'
ABOUT_FEATURES = """**What the backbone sees.** Its feature maps, from the finest to the
coarsest. In a map, cells with similar features have similar colours: red, green and blue are the
first three principal components."""
ABOUT_ATTENTION = """**Where a layer looks from the white point.** Orange cells get the most
attention. Click in the picture to move the point."""
GOOD_SIZES = """At a *good size*, the model's score on its test set is at least 90% of its best."""
ABOUT_PREDICTION = f"""**What the model finds.** The line below the picture gives the size at
which the model sees the image, and the time it took. {GOOD_SIZES}"""
ABOUT_SIZES = f"""**One model, one image, several sizes:** half, the same and twice the automatic
size of Prediction, drawn as the model sees them. {GOOD_SIZES}"""
CREDIT = """Your own images: up to 64 MB and 50 megapixels; a longer side above 2048 px is reduced
to 2048 px. Church and street: photographs by Mapillary, BSD licence. Blood smear: photograph by
Abdüssamet ASLAN, MIT licence."""
SIDE = 'Longer side of the image that the model sees, px'
AUTOMATIC = 'Automatic size: the one that suits the model'
POINT = ('Point: % from the left', 'Point: % from the top')
FIRST_LAYER, LAYERS = 7, 12  # attention layers, until the model in use says how many it has
NO_IMAGE = 'No image yet: choose an example, or drop an image of your own.'
START_SCORE = 0.5
CSS = """
.html-container { padding: 0 !important; }
.figures { display: flex; flex-wrap: wrap; gap: 1em; }
.figures figure { flex: 1 1 max(40%, 260px); margin: 0; }
#features figure { flex-basis: 40%; }
figcaption { font-weight: 600; margin-top: 0.3em; }
#results p { overflow-wrap: anywhere; }
#page { display: grid; grid-template-columns: minmax(0, 1fr) minmax(0, 2fr);
    grid-template-areas: 'inputs results' 'about results'; grid-template-rows: auto 1fr; }
#inputs { grid-area: inputs; }
#results { grid-area: results; }
#about { grid-area: about; }
@media (min-width: 800px) { #sizes figure { max-width: calc(50% - 0.5em); } }
@media (max-width: 799px) { #page { grid-template: 'inputs' 'results' 'about' / minmax(0, 1fr); } }
.figures img { width: 100%; max-height: 75vh; object-fit: contain; object-position: left; }
[role=combobox] { margin-right: 1.5em; text-overflow: ellipsis; }
[role=tab].selected, .min_value, .max_value { color: var(--body-text-color) !important; }
"""
# On a narrow screen the results are below what was tapped.
TO_RESULTS = """() => { if (innerWidth < 800)
    document.getElementById('results').scrollIntoView({behavior: 'smooth'}); }"""
QUICK: dict[str, Any] = dict(api_visibility='private', show_progress='hidden')
LOCAL = ['127.0.0.1', 'localhost']


class Blocks(gr.Blocks):
    """Gradio's blocks, with a check of every file that a request names, before any is opened.

    Gradio checks only files that have a ``meta``, which a client may leave out. Numbers are kept
    within the range of the user's slider: the field beside it takes any.
    """

    async def preprocess_data(
        self, block_fn: Any, inputs: list[Any], state: Any, *rest: Any
    ) -> list[Any]:
        traverse(inputs, check_upload, is_file_obj)
        bounded = [
            keep_within(state[component._id] if component._id in state else component, value)
            if isinstance(component, gr.Slider)
            else value
            for component, value in zip(block_fn.inputs, inputs, strict=False)
        ]
        return await super().preprocess_data(block_fn, bounded, state, *rest)


def keep_within(slider: gr.Slider, value: Any) -> float:
    """The nearest number of a slider, as its field shows it; the least for an empty field."""
    if not isinstance(value, (int, float)):
        return slider.minimum
    return min(max(slider.minimum, value), slider.maximum)


def check_upload(file: dict[str, Any]) -> dict[str, Any]:
    """The file of a request, of which ``path`` has to be a file in the page's own folder.

    Links are followed first. The error is the same for every other path, so that a client does not
    learn what exists.
    """
    refused = gr.Error('The page opens uploaded images only.', print_exception=False)
    folder = os.path.realpath(get_upload_folder())
    try:
        path = os.path.realpath(file['path'])
    except ValueError as error:  # a zero byte, a lone surrogate
        raise refused from error
    if not path.startswith(folder + os.sep) or not os.path.isfile(path):
        raise refused
    return file


class Page:
    """The page for models by name, as ``blocks``.

    It opens with the prediction of the first model for the first example.
    """

    def __init__(self, models: Mapping[str, views.Model]) -> None:
        self.models = models
        with Blocks(
            title='CPVT on images of any size',
            analytics_enabled=False,
            delete_cache=(3600, 86400),  # s: every hour, files of more than a day
        ) as self.blocks:
            gr.Markdown(TITLE)
            first = next(iter(models))
            with gr.Row(elem_id='page'):
                with gr.Column(elem_id='inputs', min_width=0):
                    self._add_inputs(first)
                with gr.Column(elem_id='results', min_width=0):
                    self._add_results(first)
                with gr.Column(elem_id='about', min_width=0):
                    self.about = gr.Markdown(models[first].describe())
                    gr.Markdown(CREDIT)
            self._connect()

    def _add_inputs(self, name: str) -> None:
        self.image = gr.Image(
            examples()[0].image,
            show_label=False,
            format='png',
            sources=['upload', 'clipboard'],
            height=260,
            buttons=[],
        )
        # The file as it is: Gradio's own preprocessing opens it, with other bounds than the reader.
        self.image.preprocess = lambda data: None if data is None else data.path
        self.examples = gr.Dataset(
            label='Examples, or drop your own image above',
            components=[self.image],
            samples=[[one.image] for one in examples()],
            sample_labels=[one.name for one in examples()],
            type='index',
        )
        choices = []
        for one, model in self.models.items():
            size = f' ({views.megabytes(model.published)})' if model.published else ''
            choices.append((f'{one}{size}', one))
        self.name = gr.Dropdown(choices, value=name, label='Model (type to search)')

    def _add_results(self, name: str) -> None:
        model, file = self.models[name], self.image.value['path']
        found = views.keep_scores(views.predict(model, file, 'config'), START_SCORE)
        self.view = gr.State(PREDICTION)
        with gr.Tabs(selected=PREDICTION) as self.tabs:
            with gr.Tab(PREDICTION, id=PREDICTION):
                gr.Markdown(ABOUT_PREDICTION)
                self.prediction = gr.HTML(to_html([views.draw(model, file, found, as_seen=False)]))
                self.automatic = gr.Checkbox(True, label=AUTOMATIC)
                side = dict(value=views.FIRST_SIDE, step=32, label=SIDE, visible=False)
                self.side = gr.Slider(32, views.MAX_SIDE, **side)
            with gr.Tab(SIZES, id=SIZES):
                gr.Markdown(ABOUT_SIZES)
                self.sizes = gr.HTML(elem_id='sizes')
            with gr.Tab(FEATURES, id=FEATURES), gr.Row():
                with gr.Column(min_width=300):
                    gr.Markdown(ABOUT_FEATURES)
                    self.features = gr.HTML(elem_id='features')
                    start = model.first_side
                    self.sliders = [gr.Slider(32, views.MAX_SIDE, start, step=32, label=SIDE)]
                with gr.Column(min_width=300):
                    gr.Markdown(ABOUT_ATTENTION)
                    self.attention = gr.Image(
                        alt_text='Attention',
                        interactive=False,
                        show_label=False,
                        buttons=['download'],
                    )
                    self.caption = gr.Markdown()
                    label = 'Attention layer; 1 is the first'
                    self.layer = gr.Slider(1, LAYERS, FIRST_LAYER, step=1, label=label)
                    self.sliders.append(self.layer)
                    with gr.Accordion('Set the point by keyboard', open=False):
                        for label in POINT:
                            self.sliders.append(gr.Slider(0, 100, 50, step=1, label=label))
        self.score = gr.Slider(
            views.LOWEST_SCORE,
            1,
            START_SCORE,
            step=0.05,
            label='Lowest score',
            visible='scores' in found,
        )
        self.opacity = gr.Slider(
            0,
            1,
            views.OPACITY,
            step=0.05,
            label='Opacity of the mask',
            visible=views.has_masks(found),
        )
        self.table = gr.Markdown(views.to_table(model, found))  # may be long: last

    def _connect(self) -> None:
        given = self.image.upload(self.accept, self.image, self.image, **QUICK)
        # A size that is good for one model may not be for another.
        followed = [self.image, self.automatic, self.sliders[0]]
        picked = self.examples.click(self.pick, self.examples, [self.name, *followed], **QUICK)
        renamed = self.name.input(self.follow, [self.name, self.image], followed, **QUICK)
        # Gradio tells of it before the image is gone. In the browser, because a late answer of the
        # server would remove an image that was given meanwhile.
        cleared = self.image.clear(None, None, self.image, js='() => null')
        switched = self.tabs.select(self.switch, None, self.view, **QUICK)
        pointed = self.attention.select(self.point, self.attention, self.sliders[2:], **QUICK)
        self.automatic.change(self.offer_side, self.automatic, self.side, **QUICK)
        self.name.change(lambda name: self.models[name].describe(), self.name, self.about, **QUICK)
        sliders = [*self.sliders, self.side, self.score, self.opacity]
        pictures = [self.features, self.attention, self.prediction, self.sizes]
        for event in (
            *(event.success for event in (given, picked, renamed, cleared, switched, pointed)),
            self.automatic.input,
            *(slider.release for slider in sliders),
        ):
            event(
                self.run,
                {self.view, self.name, self.image, self.automatic, *sliders},
                [*pictures, self.caption, self.table, self.score, self.opacity, self.layer],
                concurrency_id='model',  # one at a time, of all users
                concurrency_limit=1,
                trigger_mode='always_last',
                show_progress_on=pictures,
                api_visibility='private',
            )
        for event in (given.success, picked.success, self.about.change):
            event(js=TO_RESULTS)

    def accept(self, file: str) -> np.ndarray | None:
        """The image of an upload; ``None``, with one message, for one that cannot be used."""
        try:
            return views.read_upload(file)
        except ImageError as error:
            # Not an error: the page would keep the result of another image, and no event follows.
            gr.Warning(f'The image cannot be used: {html.escape(error.reason)}.')
            return None

    def pick(self, index: int) -> tuple[str, np.ndarray, bool, int]:
        """The model and image of an example, and the sizes to begin with."""
        example = examples()[index]
        return example.model, example.image, True, self.models[example.model].first_side

    def follow(self, name: str, file: str | None) -> tuple[np.ndarray | None, bool, int]:
        """The example of a model that was chosen, in place of another example, and the sizes to
        begin with.

        Otherwise the image as it was. ``gr.skip`` would make a component of the user's own, without
        the ``preprocess`` of this one.
        """
        shown = None if file is None else views.read_upload(file)
        own = [one.image for one in examples() if one.model == name]
        replaced = shown is None or any(np.array_equal(one.image, shown) for one in examples())
        return own[0] if own and replaced else shown, True, self.models[name].first_side

    def offer_side(self, automatic: bool) -> gr.Slider:
        """The slider of the size, hidden while that is automatic."""
        return gr.Slider(visible=not automatic)

    def switch(self, event: gr.SelectData) -> str:
        """The view of a tab."""
        return event.value

    def point(self, picture: np.ndarray, event: gr.SelectData) -> list[int]:
        """Where the picture of the attention was clicked, in % from the left and from the top."""
        height, width = picture.shape[:2]
        return [round(100 * event.index[0] / width), round(100 * event.index[1] / height)]

    def run(self, data: dict[Any, Any]) -> Iterator[dict[Any, Any]]:
        """What one view shows, by component; of several sizes one after the other."""
        model, file, view = self.models[data[self.name]], data[self.image], data[self.view]
        if file is None:
            yield self.say(NO_IMAGE)
            return
        try:
            views.read_upload(file)  # kept for what follows
            views.release_others(self.models, data[self.name])
            model.fetch()
        except (ImageError, InputError) as error:
            # The rest names a folder of the server.
            reason, _, rest = str(error).partition('; without a network')
            if rest:
                print(error, flush=True)
            yield self.say(reason)
            return
        if view == FEATURES:
            chosen = [data[slider] for slider in self.sliders]
            features, attention, caption = views.explain(model, file, *chosen)
            yield {
                self.features: to_html(features),
                self.attention: attention,
                self.caption: caption,
                self.table: '',
                self.layer: layer_slider(len(model.layers), data[self.layer]),
                **self.show_controls({}),
            }
            return
        if view == SIZES:
            scales: dict[Any, str] = views.scales_to_compare(model, file)
        else:
            side = int(data[self.side])
            automatic = data[self.automatic]
            scales = {views.first_scale(model, file) if automatic else (side, side): ''}
        # With an odd number of sizes, the image fills the two columns.
        pictures = [views.show_image(file)] if view == SIZES and len(scales) % 2 else []
        for scale, remark in scales.items():
            found = views.keep_scores(views.predict(model, file, scale), data[self.score])
            opacity = data[self.opacity]
            picture, caption = views.draw(
                model, file, found, as_seen=view == SIZES, opacity=opacity
            )
            pictures.append((picture, ' | '.join(filter(None, (caption, remark)))))
            yield {
                self.sizes if view == SIZES else self.prediction: to_html(pictures),
                self.table: views.to_table(model, found) if view == PREDICTION else '',
                **self.show_controls(found),
            }

    def say(self, text: str) -> dict[Any, Any]:
        """A text in place of every result, by component."""
        shown = f'<p>{html.escape(text)}</p>'
        return dict.fromkeys((self.features, self.prediction, self.sizes), shown) | {
            self.table: '',
            self.attention: None,
            self.caption: '',
            **self.show_controls({}),
        }

    def show_controls(self, found: views.Prediction) -> dict[Any, Any]:
        """The sliders that change the picture of a prediction, by component; hide the others."""
        return {
            self.score: gr.Slider(visible='scores' in found),
            self.opacity: gr.Slider(visible=views.has_masks(found)),
        }

    def launch(self, host: str, port: int) -> str:
        """Start the server in a thread; its address."""
        # Gradio asks its own server whether it is up, which must not go through a proxy.
        os.environ['NO_PROXY'] = ','.join([*LOCAL, os.environ.get('NO_PROXY', '')])
        # Without this, an address in place of an upload is downloaded.
        gr.processing_utils.async_ssrf_protected_download = refuse_address
        # Nor is the host of an address in place of a file looked up.
        gr.routes.secure_url_stream_response = refuse_file
        hosts = ['*'] if host in ('0.0.0.0', '::') else [*LOCAL, host]
        self.blocks.queue(max_size=8)  # requests that wait; others are refused
        _, address, _ = self.blocks.launch(
            server_name=host,
            server_port=port,
            prevent_thread_lock=True,
            quiet=True,
            show_error=True,
            footer_links=[],
            run_history=False,
            enable_monitoring=False,
            max_file_size='64mb',
            theme=gr.themes.Default(font=['system-ui', 'sans-serif'], font_mono=['monospace']),
            css=CSS,
            app_kwargs=dict(middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=hosts)]),
        )
        return address


def layer_slider(count: int, chosen: int) -> gr.Slider:
    """The slider of ``count`` layers, hidden without a choice."""
    last = dict(value=count) if count and chosen > count else {}
    return gr.Slider(maximum=max(2, count), visible=count > 1, **last)


async def refuse_address(url: str, **_: Any) -> str:
    raise ValueError('addresses are not fetched; upload the image')


async def refuse_file(*_: Any) -> Response:
    return Response(status_code=403)


def to_html(pictures: Iterable[views.Captioned]) -> str:
    """Pictures with their captions as HTML, the pictures inside of it."""
    figures = ''
    for picture, caption in pictures:
        image = f'<img src="{encode_image_to_base64(picture)}" alt="">'
        figures += f'<figure>{image}<figcaption>{html.escape(caption)}</figcaption></figure>'
    return f'<div class="figures">{figures}</div>'
