"""The site's pages: files of the repository at their places, and what is made of other files.

Links stay as they are in the repository, so that they work there too. On the site, a link to a
folder goes to its README, and one to a source file to a page that shows it. Pages of docs/api have
the docstrings in full.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

import yaml
from mkdocs.structure.files import File, InclusionLevel
from reference import PART, names_of

from cpvt_backbones.version import __version__

ROOT = Path(__file__).parents[2]
PAGES = ('README.md', 'CONTRIBUTING.md', 'CHANGELOG.md', 'docs/*.md', 'docs/api/*.md')
# Pages that others link to, and the navigation does not have.
UNLISTED = (
    'CODE_OF_CONDUCT.md',
    'docs/evidence/*.md',
    'configs/**/*.md',
    'projects/**/*.md',
    'cpvt_backbones/weights/*.md',
    'demo/*/README.md',
)
# The page that such a page belongs to, by its folder. The navigation is empty beside it.
MODELS_PAGE = ('docs/models.html', 'Models and results')
PARENTS = {
    'configs': MODELS_PAGE,
    'cpvt_backbones': MODELS_PAGE,
    'docs': ('docs/evidence.html', 'Which position encoding'),
    'projects': MODELS_PAGE,
}
OTHERS = ('docs/**/*', 'configs/**/*.txt', 'demo/**/*.csv', 'demo/*.ipynb', 'LICENSE')
SHOWN = {'.py': 'python', '.json': 'json', '.yml': 'yaml', '.yaml': 'yaml', '.cff': 'yaml'}
SOURCE = """---
search: {{exclude: true}}
---
# {name}

`{path}`

````{language}
{code}
````
"""
LINK = re.compile(r'(?<=\]\()([^)\s:#]+)(?=[)#])')
# In the repository, ``prefers-color-scheme`` asks the system. The site has a switch of its own, by
# which the theme shows one of two images. A lazy image is not fetched while it is hidden.
PICTURE = re.compile(
    r'<picture>\s*(?P<narrow>(?:<source media="\([^"]+"[^>]*>\s*)*)'
    r'<source media="\(prefers-color-scheme: dark\)" srcset="(?P<dark>[^"]+)">\s*'
    r'<img src="(?P<light>[^"]+)"(?P<rest>[^>]*)>\s*</picture>'
)
SOURCE_OF_PHONES = re.compile(r'<source media="(\(max-width: [^)]+\))([^"]*)"\s+srcset="([^"]+)">')
ROLE = re.compile(r':(?:class|func|mod|meth|attr|data):(?=<code>)')  # of Sphinx, in docstrings
# In a table of names: the links, and the last column.
NAME = re.compile(r'(?<=^\| \[`)([\w.]+`\])\([^)]+\)', re.MULTILINE)
ARGUMENTS = re.compile(r'\| [^|\n]*\|$', re.MULTILINE)
WORDS = yaml.safe_load(Path(__file__).with_name('words.yml').read_text(encoding='utf-8'))


def on_config(config: Any) -> Any:
    """Show the version in the header."""
    config.site_name += f' {__version__}'
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add pages, pictures and tables, the source files that pages link to."""
    shown: set[Path] = set()
    for patterns, level in (
        (PAGES, InclusionLevel.UNDEFINED),
        (UNLISTED, InclusionLevel.NOT_IN_NAV),
    ):
        for path in matching(patterns):
            shown |= linked_sources(path)
            name = path.relative_to(ROOT).as_posix()
            files.append(File.generated(config, name, abs_src_path=str(path), inclusion=level))
    for path in matching(OTHERS):
        name = path.relative_to(ROOT).as_posix()
        if path.is_file() and path.suffix != '.md' and not name.startswith('docs/site/'):
            files.append(File.generated(config, name, abs_src_path=str(path)))
    for path in sorted(shown):
        name = path.relative_to(ROOT).as_posix()
        code = path.read_text(encoding='utf-8')
        text = SOURCE.format(name=path.name, path=name, language=SHOWN[path.suffix], code=code)
        hidden = InclusionLevel.NOT_IN_NAV
        files.append(File.generated(config, f'{name}.md', content=text, inclusion=hidden))
    return files


def matching(patterns: tuple[str, ...]) -> list[Path]:
    """Paths of the repository, sorted."""
    return sorted({path for pattern in patterns for path in ROOT.glob(pattern)})


def linked_sources(page: Path) -> set[Path]:
    """Source files that a page links to."""
    text = with_docstrings(page.read_text(encoding='utf-8'))
    linked = {(page.parent / link).resolve() for link in LINK.findall(text)}
    return {path for path in linked if path.is_file() and path.suffix in SHOWN}


def with_docstrings(text: str) -> str:
    """Text of a page with the docstrings of the names in its tables, to which they link."""
    classes = names_of(text)['class']

    def write(part: re.Match[str]) -> str:
        names = part['names'].split()
        if part['kind'] == 'module':
            return part['text']
        if part['kind'] == 'class':  # the links to its headings stay
            titles = re.findall(r'^##+ (.+)$', part['text'], re.MULTILINE)
            places = ''.join(f'<a id="{title.lower().replace(" ", "-")}"></a>' for title in titles)
            return f'{places}\n\n::: {names[0]}\n'
        links = iter(names)
        table = NAME.sub(lambda name: f'{name[1]}(#{next(links)})', part['text'])
        table = ARGUMENTS.sub('|', table)  # the docstrings have them
        return table + ''.join(f'\n::: {name}\n' for name in names if name not in classes)

    return PART.sub(write, text)


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Point links to folders and source files at their pages."""
    place = posixpath.dirname(page.file.src_uri)

    def rewrite(match: re.Match[str]) -> str:
        link = match[1]
        path = ROOT / place / link
        if path.is_dir():
            if not (path / 'README.md').is_file():
                return posixpath.relpath('docs/models.md', place or '.')
            return f'{link.rstrip("/")}/README.md'
        return f'{link}.md' if path.is_file() and path.suffix in SHOWN else link

    if page.file.src_uri == 'README.md':
        page.meta['hide'] = ['navigation', 'toc']
    if page.file.inclusion is InclusionLevel.NOT_IN_NAV:
        page.meta.setdefault('search', dict(boost=0.2))
    elif page.file.src_uri.startswith('docs/api/'):  # after the guides
        page.meta.setdefault('search', dict(boost=0.3))
    return LINK.sub(rewrite, with_docstrings(markdown))


def themed(match: re.Match[str]) -> str:
    """The light and the dark image of a picture, each with its form for a phone if there is one."""
    phones = SOURCE_OF_PHONES.findall(match['narrow'])
    images = ''
    for scheme in ('light', 'dark'):
        image = f'<img loading="lazy" src="{match[scheme]}#only-{scheme}"{match["rest"]}>'
        sources = ''.join(
            f'<source media="{width}" srcset="{file}">'
            for width, condition, file in phones
            if ('dark' in condition) == (scheme == 'dark')
        )
        images += f'<picture>{sources}{image}</picture>' if sources else image
    return images


def on_page_content(html: str, page: Any, config: Any, files: Any) -> str:
    """Leave out Sphinx's roles and empty headings of tables; add dark pictures and ways back."""
    html = ROLE.sub('', html).replace('<th></th>', '<td></td>')
    html = PICTURE.sub(themed, html)
    folder = page.file.src_uri.partition('/')[0]
    if page.file.inclusion is not InclusionLevel.NOT_IN_NAV or folder not in PARENTS:
        return html
    parent, title = PARENTS[folder]
    link = posixpath.relpath(parent, posixpath.dirname(page.url))
    return f'<p><a href="{link}">← {title}</a></p>\n{html}'


def on_page_context(context: Any, page: Any, config: Any, nav: Any) -> None:
    """Add the words of users to the page in the search, and not to each of its sections."""
    if page.file.src_uri in WORDS:
        entries = config.plugins['material/search'].search_index.entries
        (entry,) = [entry for entry in entries if entry['location'] == page.url]
        entry['tags'] = WORDS[page.file.src_uri]
