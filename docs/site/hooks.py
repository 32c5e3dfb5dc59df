"""The site's pages: files of the repository at their places, the model zoo, and the reference of
public names.

Links stay as they are in the repository, so that they work there too. On the site, a link to a
folder goes to its README, and one to a source file to a page that shows it.
"""

import csv
import json
import logging
import posixpath
import re
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
LINK = re.compile(r'(?<=\]\()([^)\s:#]+)(?=[)#])')
SHOWN = {'.py': 'python', '.json': 'json', '.yml': 'yaml', '.yaml': 'yaml', '.cff': 'yaml'}
SOURCE = (
    '---\nsearch: {{exclude: true}}\n---\n# {name}\n\n`{path}`\n\n````{language}\n{code}\n````\n'
)
ZOO = (
    '| model | data | parameters, M | G at 224 | G at 800 x 1344 | accuracy | source |\n|'
    + 7 * ' --- |'
    + '\n'
)
EXPORTS = ('backbones', 'layers', 'checkpoints', 'inference', 'export')
MODULES = {
    'weights': ('',),
    'engine': (
        'launch',
        'durable',
        'epoch_seed',
        'layer_decay',
        'predict_by_size',
        'preprocessors',
        'distillation',
    ),
    'analysis': ('complexity', 'resolution', 'equivariance', 'attention_maps', 'features'),
}


def on_files(files: Any, config: Any) -> Any:
    """Add pages, what they link to, and the reference."""
    add = lambda name, **content: files.append(File.generated(config, name, **content))  # noqa: E731
    for path in sorted({path for pattern in PAGES for path in ROOT.glob(pattern)}):
        page = path.relative_to(ROOT).as_posix()
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
    for name, text in reference().items():
        add(f'api/{name}.md', content=text)
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Point links to folders and source files at their pages."""

    def rewrite(match: re.Match[str]) -> str:
        link = match[1]
        path = ROOT / posixpath.dirname(page.file.src_uri) / link
        if path.is_dir():
            return (
                f'{link.rstrip("/")}/README.md'
                if (path / 'README.md').is_file()
                else 'docs/models.md'
            )
        return f'{link}.md' if path.is_file() and path.suffix in SHOWN else link

    page.meta['hide'] = ['toc'] * (
        page.file.src_uri in ('docs/models.md', 'docs/weights.md')
    )  # wide tables
    return LINK.sub(rewrite, markdown.replace('<!-- models -->', zoo()))


def on_page_content(html: str, page: Any, config: Any, files: Any) -> str:
    """Drop Sphinx's roles, which docstrings use and Markdown does not know."""
    return re.sub(r':(?:class|func|mod|meth|attr):(?=<code>)', '', html)


def zoo() -> str:
    """A row for each shipped model and recipe, from cards, metafiles, READMEs and
    docs/flops.csv.
    """
    costs: dict[str, list[str]] = {}
    for row in csv.DictReader((ROOT / 'docs/flops.csv').read_text().splitlines()):
        costs.setdefault(row['model'], [f'{int(row["parameters"]) / 1e6:.1f}']).append(
            f'{float(row["gmacs"]):.1f}'
        )
    rows = []
    for name, shipped in json.loads(
        (ROOT / 'cpvt_backbones/weights/index.json').read_text()
    ).items():
        card = f'cpvt_backbones/weights/{name}.md'
        table = [
            line.strip('| ').split(' | ')
            for line in (ROOT / card).read_text().splitlines()
            if line[:2] == '| '
        ]
        size, _, best = max(table[2:], key=lambda cells: float(cells[2]))
        best += f' ({table[0][2].rpartition("/")[2]}, size {size})'
        model = [
            f'[{name}](../{card})',
            name.rpartition('-')[2],
            *costs[Path(shipped['config']).stem],
        ]
        rows.append([*model, best, f'development score: [card](../{card})'])
    for metafile in yaml.safe_load((ROOT / 'model-index.yml').read_text())['Import']:
        readme = Path(metafile).with_name('README.md')
        text = (ROOT / readme).read_text()
        metric = (re.search(r'## Results\s+(.+?)[,:] ', text) or ['', ''])[1]
        for model in yaml.safe_load((ROOT / metafile).read_text())['Models']:
            name = model['Name']
            row = [f'[{name}](../{model["Config"]})', model['Metadata']['Training Data']]
            row += costs.get(name, [f'{model["Metadata"]["Parameters"] / 1e6:.1f}', '', ''])
            found = re.search(
                rf'^\| \[{re.escape(name)}\]\(.+?\) \| [^|]+ \| (.+) \|$', text, re.MULTILINE
            )
            source = (
                [f'{found[1]} ({metric})', f'published: [README](../{readme})']
                if found
                else ['', '']
            )
            rows.append(row + source)
    return ZOO + ''.join(f'| {" | ".join(row)} |\n' for row in rows)


def reference() -> dict[str, str]:
    """A page for each package.

    A public name without a docstring is a warning, which fails the build.
    """
    package = griffe.load('cpvt_backbones', search_paths=[str(ROOT)])
    texts = {}
    for name in (*EXPORTS, *MODULES):
        texts[name] = f'# cpvt_backbones.{name}\n\n{package[name].docstring.value}\n\n'
        for module in (package[f'{name}.{part}'.rstrip('.')] for part in MODULES.get(name, ('',))):
            for key, one in module.members.items():
                if (
                    key in (module.exports or ())
                    if name in EXPORTS
                    else key[0] != '_' and not one.is_alias
                ):
                    one = one.final_target if one.is_alias else one
                    check_documented(one)
                    texts[name] += f'::: {one.path}\n\n' if one.docstring else ''
    return texts


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
