"""The site's pages: files of the repository at their places, the model zoo, and the reference of
public names.

Links stay as they are in the repository, so that they work there too. On the site, a link to a
folder goes to its README, and one to a source file to a page that shows it.
"""

import contextlib
import csv
import functools
import importlib
import io
import json
import logging
import os
import posixpath
import re
import sys
from pathlib import Path
from typing import Any

import griffe
import yaml
from mkdocs.structure.files import File, InclusionLevel

ROOT = Path(__file__).parents[2]
PAGES = (
    'README.md',
    'C*.md',
    'docs/**/*.md',
    'configs/**/*.md',
    'projects/**/*.md',
    'cpvt_backbones/weights/*.md',
)
README = 'overview.md'  # of the repository. The site's first page is its own index.md.
NARROW = 'docs/figures/sizes_narrow.png'  # the picture of the first page on a phone
EXAMPLE = re.compile(r'<!-- README: (\S+) -->')
ROLE = re.compile(r':(?:class|func|meth|mod|attr|data):`~?(?:[\w.]+\.)?(\w+)`')
CODE = re.compile(r'`([\w.]+)`')
LINK = re.compile(r'(?<=\]\()([^)\s:#]+)(?=[)#])')
SHOWN = {'.py': 'python', '.json': 'json', '.yml': 'yaml', '.yaml': 'yaml', '.cff': 'yaml'}
SOURCE = (
    '---\nsearch: {{exclude: true}}\n---\n# {name}\n\n`{path}`\n\n````{language}\n{code}\n````\n'
)
# Tables of the zoo: its task in the metafiles, the column of multiply-adds, and its metrics.
TABLES = (
    ('Image Classification', (224, 224), ('top-1, %',)),
    ('Object Detection', (800, 1344), ('box AP',)),
    ('Instance Segmentation', (800, 1344), ('box AP', 'mask AP')),
    ('Semantic Segmentation', (800, 1344), ('mIoU', 'mIoU, many scales')),
)
LATER = ('api/', 'docs/benchmarks/', 'docs/evidence/', 'projects/', 'CHANGELOG')  # in the search
CALLED_BY_MMENGINE = re.compile(
    '(before|after)_(run|train|val|test|load_checkpoint|save_checkpoint)'
)
PICTURES = {
    'backbones': '![Blocks, PEGs and outputs of the backbones](../docs/figures/backbones.svg)\n\n'
}
USUAL = ('make_config', 'train', 'test', 'infer', 'export')  # the first on their page
ALL_NAMES = """# Names (API)

The names that people use, in one line each. [Command lines](command_line.md) has the scripts, and
[concepts](../docs/concepts.md) explains terms.

"""
COMMAND_LINES = """# Command lines

The scripts of the folder `tools` of a clone, with all arguments.
`python tools/NAME.py --help` prints the same. How to use them: [own data](../docs/own_data.md),
[prediction](../docs/inference.md), [export](../docs/export.md).

"""
# Entries that a page of the reference begins with, in this order; the others come under a heading.
MAIN = {
    'backbones': (
        'PyramidCPVT',
        'MultiScaleCPVT',
        'CPVT',
        'Backbone',
        'list_archs',
        'build_with_peg',
    ),
    'layers': (
        'PEG',
        'PEGPosition',
        'LearnedTable',
        'SinCos',
        'Relative',
        'DecomposedRelative',
        'RoPE',
        'PositionEncoding',
        'register_position',
        'Attention',
        'WindowAttention',
        'SpatialReductionAttention',
        'PatchEmbed',
        'Block',
        'MLP',
    ),
    'inference': (
        'Inferencer',
        'Result',
        'predict_to_folder',
        'Summary',
        'merge_shards',
        'read_config',
        'ValueRange',
        'ImageError',
    ),
    'export': ('export', 'ExportedModel', 'graph_of', 'verify', 'Comparison'),
    'checkpoints': (
        'load_weights',
        'load_checkpoint',
        'convert_state_dict',
        'export_state_dict',
        'recognise_backbone',
        'public_backbone',
        'ConversionReport',
        'CheckpointError',
    ),
    'weights': ('shipped_weights', 'find_shipped'),
    'engine': (
        'ValidSizesDetDataPreprocessor',
        'ValidSizesSegDataPreProcessor',
        'ValidSizesClsDataPreprocessor',
        'ValidSizes',
        'LayerDecayOptimWrapperConstructor',
        'DurableCheckpointHook',
        'TrainingCheckHook',
        'WarmupEMAHook',
        'PredictBySizeHook',
        'DistillationHead',
        'HardDistillation',
        'DETRWithPEG',
        'LoadRange',
    ),
    'analysis': (
        'sweep',
        'good_sizes',
        'complexity_against_size',
        'measure_equivariance',
        'attention_weights',
        'FeatureExtractor',
    ),
}
FURTHER = '## Further names\n\nThe functions above use these, and few users need them.\n\n'
# Pages that show how the entries of a page of the reference are used.
GUIDES = dict(
    backbones=('docs/how_it_works.md', 'docs/evidence.md', 'docs/tutorials/finetune.md'),
    layers=('docs/how_it_works.md', 'docs/rope.md'),
    checkpoints=('docs/weights.md',),
    weights=('docs/models.md',),
    inference=('docs/inference.md', 'docs/inference_reference.md'),
    export=('docs/export.md', 'docs/tutorials/onnx.md'),
    engine=('docs/own_data.md', 'docs/own_config.md', 'docs/tutorials/finetune.md'),
    analysis=('docs/analysis.md',),
)
# Where the folder has another name than its page.
NAMES = dict(engine='Training', weights='Shipped weights')
ROOMS = ('backbones', 'layers', 'checkpoints', 'inference', 'export', 'engine', 'weights')
# Rooms whose modules are imported one by one.
ANALYSES = ('complexity', 'resolution', 'image_size', 'equivariance', 'attention_maps', 'features')
MODULES = {'analysis': ANALYSES}


def on_files(files: Any, config: Any) -> Any:
    """Add pages, what they link to, and the reference."""
    add = lambda name, **content: files.append(File.generated(config, name, **content))  # noqa: E731
    for path in sorted({path for pattern in PAGES for path in ROOT.glob(pattern)}):
        page = path.relative_to(ROOT).as_posix()
        if page.startswith('docs/site/'):  # MkDocs adds its own folder
            continue
        if page == 'README.md':  # the first page says the same
            add(README, abs_src_path=str(path), inclusion=InclusionLevel.NOT_IN_NAV)
        else:
            add(page, abs_src_path=str(path))
        for link in LINK.findall(
            path.read_text(encoding='utf-8') + (zoo() if page == 'docs/models.md' else '')
        ):
            name = posixpath.normpath(posixpath.join(posixpath.dirname(page), link))
            file = ROOT / name
            if (
                not file.is_file()
                or file.suffix == '.md'
                or {name, f'{name}.md'} & files.src_uris.keys()
            ):
                continue
            if language := SHOWN.get(file.suffix):
                text = SOURCE.format(
                    name=file.name, path=name, language=language, code=file.read_text('utf-8')
                )
                add(f'{name}.md', content=text, inclusion=InclusionLevel.NOT_IN_NAV)
            else:
                add(name, abs_src_path=str(file))
    add(NARROW, abs_src_path=str(ROOT / NARROW))
    for name, text in reference().items():
        add(f'api/{name}.md', content=text)
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Point links to folders and source files at their pages."""

    def rewrite(match: re.Match[str]) -> str:
        link = match[1]
        path = ROOT / posixpath.dirname(page.file.src_uri) / link
        if path.is_dir():
            if not (path / 'README.md').is_file():
                return 'docs/models.md'
            link, path = f'{link.rstrip("/")}/README.md', path / 'README.md'
        if path.resolve() == ROOT / 'README.md':
            return link.removesuffix('README.md') + README
        return f'{link}.md' if path.is_file() and path.suffix in SHOWN else link

    if page.file.src_uri in ('docs/models.md', 'docs/weights.md'):  # wide tables
        page.meta['hide'] = ['toc']
    if page.file.src_uri.startswith(LATER):
        page.meta['search'] = {'boost': 0.4, **page.meta.get('search', {})}
    if page.file.src_uri == 'docs/concepts.md':
        markdown = CODE.sub(lambda match: linked(match[1]), markdown)
    markdown = EXAMPLE.sub(lambda match: readme_config(match[1]), markdown)
    return LINK.sub(rewrite, markdown.replace('<!-- models -->', zoo()))


def on_page_content(html: str, page: Any, config: Any, files: Any) -> str:
    """Make links of Sphinx's roles, which docstrings use and Markdown does not know. An empty cell
    heads no column.
    """

    def link(match: re.Match[str]) -> str:
        *modules, name = match[1].split('.')
        if modules and modules[-1][:1].isupper():  # a method of a class
            name = f'{modules[-1]}.{name}'
        entry = entry_of(name)
        text = f'<code>{name}</code>'
        return f'<a href="{entry[0]}.html#{entry[1]}">{text}</a>' if entry else text

    html = re.sub(r'<th[^>]*></th>', '<td></td>', html)
    html = re.sub(r':(?:class|func|mod|meth|attr):<code>~?([\w.]+)</code>', link, html)
    return re.sub(r'<code>(?=[^<\n]{1,24}</code>)', '<code class="short">', html)


def on_post_template(output: str, template_name: str, config: Any) -> str:
    """Make the links of the page 404 relative: its script finds the folder of the site."""
    if template_name != '404.html':
        return output
    return re.sub(r'((?:href|src)="|"base": ?")/', r'\1./', output)


def readme_config(name: str) -> str:
    """The block of the README whose first line is the comment ``name``."""
    text = (ROOT / 'README.md').read_text(encoding='utf-8')
    (block,) = re.findall(rf'^```python\n# {re.escape(name)}\n.+?^```', text, re.DOTALL | re.M)
    return block


def zoo() -> str:
    """A table for each task: shipped models, then recipes, of metafiles, READMEs and
    docs/flops.csv.
    """
    costs = read_costs()
    models = shipped_models(costs) + recipes(costs)
    models.sort(key=lambda model: not model['scores'])  # those without a score come last
    text = ''
    for task, size, metrics in TABLES:
        columns = ('model', 'data', 'parameters, M', f'G at {size[0]} x {size[1]}', *metrics)
        text += f'## {task}\n\n| {" | ".join((*columns, "status"))} |\n'
        text += '|' + ' --- |' * (len(columns) + 1) + '\n'
        for model in models:
            if model['task'] != task:
                continue
            scores = [*model['scores'], *[''] * len(metrics)][: len(metrics)]
            cells = (
                model['name'],
                model['data'],
                model['parameters'],
                model['costs'].get(size, ''),
            )
            text += f'| {" | ".join((*cells, *scores, model["status"]))} |\n'
        text += '\n'
    return text


def read_costs() -> dict[str, dict[tuple[int, int], dict[str, str]]]:
    """Rows of docs/flops.csv by model and (height, width)."""
    costs: dict[str, dict[tuple[int, int], dict[str, str]]] = {}
    for row in csv.DictReader((ROOT / 'docs/flops.csv').read_text().splitlines()):
        costs.setdefault(row['model'], {})[int(row['height']), int(row['width'])] = row
    return costs


def zoo_entry(name: str, task: str, costs: dict[tuple[int, int], dict[str, str]]) -> dict[str, Any]:
    """What every model of the zoo has; ``costs`` are its rows of docs/flops.csv."""
    return dict(
        name=name,
        task=task,
        costs={size: f'{float(row["gmacs"]):.1f}' for size, row in costs.items()},
        parameters=''.join(
            f'{int(row["parameters"]) / 1e6:.1f}' for row in list(costs.values())[:1]
        ),
        scores=[],
        status='not trained',
    )


def shipped_models(costs: dict[str, dict[tuple[int, int], dict[str, str]]]) -> list[dict[str, Any]]:
    """Models whose weights ship, with the best score of their cards, in percent."""
    index = json.loads((ROOT / 'cpvt_backbones/weights/index.json').read_text())
    models = []
    for name, shipped in index.items():
        card = f'cpvt_backbones/weights/{name}.md'
        rows = [
            line.strip('| ').split(' | ')
            for line in (ROOT / card).read_text().splitlines()
            if line[:2] == '| '
        ]
        metric = rows[0][2].rpartition('/')[2]
        task = {'top1': 0, 'bbox_mAP': 1, 'mIoU': 3}[metric]
        size, _, best = max(rows[2:], key=lambda cells: float(cells[2]))
        score = float(best) * (100 if metric == 'bbox_mAP' else 1)
        entry = zoo_entry(
            f'[{name}](../{card})', TABLES[task][0], costs[Path(shipped['config']).stem]
        )
        (entry['data'],) = re.findall(r'^\*\*Data\.\*\* (\w+)', (ROOT / card).read_text(), re.M)
        entry['scores'] = [f'{score:.1f}']
        entry['status'] = f'trained here; development score at size {size}'
        models.append(entry)
    return models


def recipes(costs: dict[str, dict[tuple[int, int], dict[str, str]]]) -> list[dict[str, Any]]:
    """Recipes of the metafiles, with the published scores of the READMEs."""
    models = []
    for metafile in yaml.safe_load((ROOT / 'model-index.yml').read_text())['Import']:
        readme = Path(metafile).with_name('README.md')
        published = published_scores((ROOT / readme).read_text())
        for model in yaml.safe_load((ROOT / metafile).read_text())['Models']:
            name, metadata = model['Name'], model['Metadata']
            tasks = metadata['Tasks']
            entry = zoo_entry(f'[{name}](../{model["Config"]})', tasks[-1], costs.get(name, {}))
            entry['data'] = metadata['Training Data']
            entry['parameters'] = f'{metadata["Parameters"] / 1e6:.1f}'
            if name in published:
                entry['scores'] = published[name]
                entry['status'] = f'published elsewhere: [source](../{readme})'
            models.append(entry)
    return models


def published_scores(readme: str) -> dict[str, list[str]]:
    """Scores by recipe, from the last column of a table whose rows begin with links to recipes."""
    rows = re.findall(r'^\| \[(\S+)\]\(\1\.py\) \|.*\| ([^|]+) \|$', readme, re.MULTILINE)
    return {name: re.sub(r' *\(.*\)', '', scores).split(' / ') for name, scores in rows}


@functools.cache
def entries() -> dict[str, dict[str, Any]]:
    """Public names of each folder of the package, by path."""
    package = griffe.load('cpvt_backbones', search_paths=[str(ROOT)])
    found = {}
    for room in (*ROOMS, *MODULES):
        found[room] = public_names(package[room])
        for module in MODULES.get(room, ()):
            found[room] |= own_names(package[f'{room}.{module}'])
    return found


def linked(name: str) -> str:
    """Code that names an entry of the reference as a link to it."""
    entry = entry_of(name)
    return f'[`{name}`](../api/{entry[0]}.md#{entry[1]})' if entry else f'`{name}`'


def entry_of(name: str) -> tuple[str, str] | None:
    """Page and anchor of ``PEG`` or ``CPVT.forward``, if the reference has them."""
    first, _, method = name.partition('.')
    for room, names in entries().items():
        for path, one in names.items():
            if one.name == first and not method:
                return room, path
            if one.name == first and method in one.all_members:
                return room, f'{place(one, method, names)}.{method}'
    return None


def reference() -> dict[str, str]:
    """A page for each folder of the package, one for the command lines, and a list of names.

    A public name without a docstring is a warning, which fails the build.
    """
    package = griffe.load('cpvt_backbones', search_paths=[str(ROOT)])
    texts = {'names': ALL_NAMES, 'command_line': command_lines()}
    for room, names in entries().items():
        by_name = {one.name: (path, one) for path, one in names.items()}
        for _, one in by_name.values():
            check_documented(one)
        page_name = NAMES.get(room, room.capitalize())
        guides = ', '.join(f'[{title(page)}](../{page})' for page in GUIDES[room])
        texts[room] = (
            f'# {page_name} (API)\n\n`cpvt_backbones.{room}`\n\n{package[room].docstring.value}\n\n'
            f'How to use it: {guides}.\n\n{PICTURES.get(room, "")}'
        )
        texts['names'] += f'## {page_name}\n\n| name | what it is |\n| --- | --- |\n'
        for name in MAIN[room]:
            path, one = by_name.pop(name)
            texts[room] += reference_block(path, one, names)
            texts['names'] += f'| [`{name}`]({room}.md#{path}) | {first_sentence(one)} |\n'
        texts['names'] += '\n'
        further = [reference_block(path, one, names, level=3) for path, one in by_name.values()]
        texts[room] += ''.join([FURTHER, *further]) if further else ''
    return texts


def first_sentence(one: Any) -> str:
    """Of a docstring, on one line."""
    paragraph = ' '.join(one.docstring.value.partition('\n\n')[0].split())
    sentence = re.split(r'(?<=\w)\. ', paragraph)[0].rstrip('.')
    return ROLE.sub(r'`\1`', sentence).replace('``', '`')


def title(page: str) -> str:
    """The first heading of a page."""
    return (ROOT / page).read_text(encoding='utf-8').partition('\n')[0].removeprefix('# ')


def reference_block(path: str, one: Any, names: dict[str, Any], level: int = 2) -> str:
    """The entry of a name. What a class inherits from one on the same page is a line of links."""
    options = f'    options:\n      heading_level: {level}\n'
    if not documented_bases(one, names):
        return f'::: {path}\n{options}\n'
    links = [
        f'[`{name}`](#{place(one, name, names)}.{name})'
        for name, member in sorted(one.all_members.items())
        if is_shown(name) and name not in one.members and has_entry(member)
    ]
    block = f'::: {path}\n{options}      inherited_members: false\n\n'
    return block + (f'Inherited: {", ".join(links)}.\n\n' if links else '')


def documented_bases(one: Any, names: dict[str, Any]) -> list[Any]:
    """The classes on the same page from which a class inherits, the nearest first."""
    return [base for base in one.mro() if base.path in names] if one.is_class else []


def place(one: Any, member: str, names: dict[str, Any]) -> str:
    """Path of the class at whose entry a method or attribute of a class is shown."""
    classes = [one, *documented_bases(one, names)]
    defining = [candidate for candidate in classes if member in candidate.members]
    return (defining or classes[-1:])[0].path


def is_shown(name: str) -> bool:
    """True for names that the filters of mkdocs.yml let through."""
    return name == '__call__' or not (name[0] == '_' or CALLED_BY_MMENGINE.match(name))


def has_entry(member: Any) -> bool:
    """True for a method or attribute that the reference shows."""
    one = member.final_target if member.is_alias else member
    return (one.is_function or one.is_attribute) and bool(one.docstring)


def command_lines() -> str:
    """What each script of tools/ prints for ``--help``."""
    text = COMMAND_LINES
    os.environ['COLUMNS'] = '77'  # the text has two columns less, which fits the page
    sys.path.insert(0, str(ROOT / 'tools'))
    scripts = sorted(
        path.stem for path in (ROOT / 'tools').glob('*.py') if "'__main__'" in path.read_text()
    )
    for name in (*USUAL, *(name for name in scripts if name not in USUAL)):
        shown = io.StringIO()
        sys.argv[0] = f'{name}.py'
        with contextlib.redirect_stdout(shown), contextlib.suppress(SystemExit):
            importlib.import_module(name).main(['--help'])
        text += f'## {name}.py\n\n```text\n{shown.getvalue()}```\n\n'
    return text


def public_names(room: Any) -> dict[str, Any]:
    """What a folder offers: what its ``__init__`` imports from the package or defines, and what
    its modules register for configs; by path.
    """
    names = own_names(room)
    for key, one in room.members.items():
        if one.is_alias and key[0] != '_' and one.target_path.startswith('cpvt_backbones.'):
            target = one.final_target
            if target.is_class or target.is_function:
                names[target.path] = target
    for module in room.modules.values():
        if not module.is_alias:
            registered = own_names(module).items()
            names |= {path: one for path, one in registered if is_registered(one)}
    return names


def own_names(module: Any) -> dict[str, Any]:
    """Public classes and functions that a module defines, by path."""
    members = ((key, one) for key, one in module.members.items() if key[0] != '_')
    return {
        one.path: one
        for key, one in members
        if not one.is_alias and (one.is_class or one.is_function)
    }


def is_registered(one: Any) -> bool:
    """True for a class or function that mmengine finds by its name."""
    return any('register_module' in str(decorator.value) for decorator in one.decorators)


def check_documented(one: Any) -> None:
    """Warn of a function, class or method that neither it nor a class that it overrides
    describes.
    """
    bases = one.parent.mro() if one.is_function and one.parent.is_class else []
    if not (one.is_attribute or one.docstring or any(one.name in base.members for base in bases)):
        logging.getLogger('mkdocs.hooks').warning('%s has no docstring', one.path)
    for member in one.members.values() if one.is_class else ():
        if member.is_function and member.name[0] != '_':
            check_documented(member)
