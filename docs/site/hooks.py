"""The site's pages: files of the repository at their places, the model zoo, and the reference of
public names.

Links stay as they are in the repository, so that they work there too. On the site, a link to a
folder goes to its README, and one to a source file to a page that shows it.
"""

import ast
import posixpath
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, InclusionLevel
from mkdocs.structure.toc import AnchorLink

sys.path.insert(0, str(Path(__file__).parent))  # for the modules beside this one

from reference import entry_of, linked, reference, sources, types
from words import WORDS
from zoo import zoo

ROOT = Path(__file__).parents[2]
PAGES = (
    'README.md',
    'C*.md',
    'docs/**/*.md',
    'configs/**/*.md',
    'projects/**/*.md',
    'cpvt_backbones/weights/*.md',
    'demo/*/README.md',
)
README = 'overview.md'  # of the repository. The site's first page is its own index.md.
TO_SOURCE = re.compile(r'\[`?(\w+)`?\]\([./]*cpvt_backbones/[\w/]+\.py\)')
EXAMPLE = re.compile(r'<!-- (README|docs/own_config): (\S+\.py) -->')
PEERS = '<!-- README: table of peers -->'
CODE = re.compile(r'`([\w.]+)`')
PLOT = re.compile(r'^!\[([^\]]*)\]\((\S+)\.png\)$', re.MULTILINE)
LINK = re.compile(r'(?<=\]\()([^)\s:#]+)(?=[)#])')
PICTURE = re.compile(r'<picture>(?:(?!</picture>).)+scheme: dark.+?</picture>', re.DOTALL)
IMAGE = re.compile(r'(?:src|srcset)="([^":]+)"')  # in HTML
SHEET = re.compile(r'!\[[^\]]*\]\(([^)\s:]+)\)')  # in Markdown
SHOWN = {'.py': 'python', '.json': 'json', '.yml': 'yaml', '.yaml': 'yaml', '.cff': 'yaml'}
SOURCE = (
    '---\nsearch: {{exclude: true}}\n---\n# {name}\n\n`{path}`\n\n{related}'
    '````{language}\n{code}\n````\n'
)
# In the search, guides come first, and pages for looking up last. Tables of measurements, and the
# README, whose words stand on the first page, are left out.
FIRST = ('docs/own_config', 'docs/weights.md')  # they say what to write in a config
GUIDES = (
    'docs/analysis',
    'docs/bridges',
    'docs/evidence.md',
    'docs/export',
    'docs/get_started',
    'docs/inference.md',
    'docs/install',
    'docs/own_data.md',
    'docs/rope',
    'docs/scale',
    'docs/speed',
    'docs/tutorials/',
    'index.md',
)
LATER = (
    'C',
    'api/',
    'configs/',
    'cpvt_backbones/',
    'demo/',
    'docs/benchmarks/',
    'docs/evidence/',
    'docs/inference_reference',
    'docs/own_data_reference',
    'docs/paper',
    'docs/ports',
    'docs/reliability',
    'docs/weights_reference',
    'projects/',
)
# In an entry of the reference: a signature, what stands before the arguments, the import with the
# summary, and an argument.
SIGNATURE = re.compile(
    r'(<div class="[^"]*doc-signature[^"]*">(?:(?!</div>).)+</div>)((?:(?!doc-signature).)+?)'
    r'(?=<p><span class="doc-section-title">Parameters:)',
    re.DOTALL,
)
SUMMARY = re.compile(
    r'(?:(?!<p>).)*(?:<p><code[^>]*>from (?:(?!</p>).)+</p>\s*)?<p>(?:(?!</p>).)+</p>', re.DOTALL
)
LONG = 10  # lines
GUIDE = re.compile(r'\bdocs/(\w+)\.md\b')
ENTRY = re.compile(r'<h[23] id="(cpvt_backbones\.[\w.]+)"')
IMPORT = re.compile(r'<p><code[^>]*>from [\w.]+ import \w+</code>(?=</p>)')
# What the contents of a page list of a class that is alone on it.
SECTION = re.compile(
    r'<p><span class="doc-section-title">(?P<title>\w+):</span></p>'
    r'|<table>\s*<thead>\s*<tr>\s*<th[^>]*><code[^>]*>(?P<table>\w+)</code></th>'
    r'|<div class="argument">\s*<b><code[^>]*>(?P<argument>\w+)</code></b>'
    r'|<h3 id="(?P<heading>attributes-and-methods)">'
    r'|<td><a [^>]+><code[^>]*>(?P<member>\w+)</code></a></td>'
)
ITEM = re.compile(
    r'(?<=<li class="doc-section-item field-body">)((?:(?!</li>).)+?)\s+–\s+'
    r'(?=<div class="doc-md-description">)',
    re.DOTALL,
)
# A picture of two halves, of 804 x 562 px each.
HALVES = re.compile(r'<img alt="([^"]*)" src="([^"]*?demo_two\.webp)"[^>]*>')
UNSEARCHED = re.compile(r'docs/benchmarks/(?!details)|overview\.md$')


def on_files(files: Any, config: Any) -> Any:
    """Add pages, what they link to, and the reference."""
    add = lambda name, **content: files.append(File.generated(config, name, **content))  # noqa: E731
    shown = {name for name, _ in sources().values()}
    for path in sorted({path for pattern in PAGES for path in ROOT.glob(pattern)}):
        page = path.relative_to(ROOT).as_posix()
        if page.startswith('docs/site/'):  # MkDocs adds its own folder
            continue
        # The first page says what the README says. In demo/ are sources of pictures.
        is_left_out = page.startswith(('README.md', 'demo/'))
        inclusion = InclusionLevel.NOT_IN_NAV if is_left_out else InclusionLevel.UNDEFINED
        name = README if page == 'README.md' else page
        add(name, abs_src_path=str(path), inclusion=inclusion)
        text = path.read_text(encoding='utf-8') + (zoo() if page == 'docs/models.md' else '')
        text = with_narrow_plots(text, path.parent)
        for link in LINK.findall(text) + IMAGE.findall(text):
            name = posixpath.normpath(posixpath.join(posixpath.dirname(page), link))
            file = ROOT / name
            if (
                not file.is_file()
                or file.suffix == '.md'
                or {name, f'{name}.md'} & files.src_uris.keys()
            ):
                continue
            if file.suffix in SHOWN:
                shown.add(name)
            else:
                add(name, abs_src_path=str(file))
    for name in sorted(shown.union(*map(bases, shown))):
        add(f'{name}.md', content=source_page(name), inclusion=InclusionLevel.NOT_IN_NAV)
    for name in pictures_of_home() - files.src_uris.keys():
        add(name, abs_src_path=str(ROOT / name))
    for name, text in reference().items():
        add(f'api/{name}.md', content=text)
    return files


def pictures_of_home() -> set[str]:
    """Files of the pictures on the first page, for both themes."""
    home = (ROOT / 'docs/site/index.md').read_text(encoding='utf-8')
    drawn = {*IMAGE.findall(home), *SHEET.findall(home)}
    return drawn | {dark(name) for one in PICTURE.findall(home) for name in IMAGE.findall(one)}


def bases(name: str) -> list[str]:
    """Files of the repository that a config inherits from, directly or through others."""
    found = []
    for base in inherited(name):
        if '::' not in base:
            path = posixpath.normpath(posixpath.join(posixpath.dirname(name), base))
            found += [path, *bases(path)]
    return found


def inherited(name: str) -> list[str]:
    """What a config names as its ``_base_``; nothing for other files."""
    if not name.endswith('.py'):
        return []
    for line in ast.parse((ROOT / name).read_text(encoding='utf-8')).body:
        if isinstance(line, ast.Assign) and ast.unparse(line.targets[0]) == '_base_':
            value = ast.literal_eval(line.value)
            return [value] if isinstance(value, str) else list(value)
    return []


def related_pages(name: str) -> str:
    """Links to the README of a config and to the files that it inherits from."""
    folder = (ROOT / name).parent
    links = []
    if 'configs/' in name and (folder / 'README.md').is_file():
        links.append('[README of these recipes](README.md)')
    if names := inherited(name):
        shown = (
            f'`{one}`' if '::' in one else f'[`{one.removeprefix("./")}`]({one})' for one in names
        )
        links.append(f'based on {", ".join(shown)}')
    text = '; '.join(links)
    return f'{text[:1].upper()}{text[1:]}.\n\n' if text else ''


def source_page(name: str) -> str:
    """The page that shows a source file."""
    file = ROOT / name
    code = file.read_text(encoding='utf-8')
    return SOURCE.format(
        name=file.name,
        path=name,
        related=related_pages(name),
        language=SHOWN[file.suffix],
        code=code,
    )


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

    page.meta['search'] = {**search_options(page.file.src_uri), **page.meta.get('search', {})}
    if page.file.src_uri == 'docs/concepts.md':
        markdown = CODE.sub(lambda match: linked(match[1]), markdown)
    at = page.file.src_uri
    markdown = TO_SOURCE.sub(lambda match: to_reference(match, at), markdown)
    markdown = EXAMPLE.sub(lambda match: config_of(*match.groups()), markdown)
    markdown = with_narrow_plots(markdown, (ROOT / page.file.src_uri).parent)
    if PEERS in markdown:
        markdown = markdown.replace(PEERS, readme_peers())
    markdown = PICTURE.sub(lambda match: both_themes(match[0]), markdown)
    return LINK.sub(rewrite, markdown.replace('<!-- models -->', zoo()))


def search_options(name: str) -> dict[str, Any]:
    """What the search plugin takes from a page's front matter."""
    if UNSEARCHED.match(name):
        return dict(exclude=True)
    if name.startswith(FIRST):
        return dict(boost=3)
    if name.startswith(GUIDES):
        return dict(boost=2)
    return dict(boost=0.4) if name.startswith(LATER) else {}


def on_page_content(html: str, page: Any, config: Any, files: Any) -> str:
    """Make links of Sphinx's roles, which docstrings use and Markdown does not know. An empty cell
    heads no column. An argument's name and type are parts of their own. A long signature stands
    below the summary.
    """

    def link(match: re.Match[str]) -> str:
        *modules, name = match[1].split('.')
        if modules and modules[-1][:1].isupper():  # a method of a class
            name = f'{modules[-1]}.{name}'
        entry = entry_of(name)
        text = f'<code>{name}</code>'
        return f'<a href="{entry[0]}.html#{entry[1]}">{text}</a>' if entry else text

    html = HALVES.sub(halves, html)
    html = SIGNATURE.sub(put_below_summary, html)
    html = ITEM.sub(r'<div class="argument">\1</div>', html)
    if page.file.src_uri.startswith('api/'):
        html = link_sources(html)
        html = link_types(html)
        html = GUIDE.sub(r'<a href="../docs/\1.html">docs/\1.md</a>', html)
        html = list_sections(html, page)
    html = re.sub(r'<th[^>]*></th>', '<td></td>', html)
    html = re.sub(r':(?:class|func|mod|meth|attr):<code>~?([\w.]+)</code>', link, html)
    return re.sub(r'<code>(?=[^<\n]{1,24}</code>)', '<code class="short">', html)


def on_page_context(context: Any, page: Any, config: Any, nav: Any) -> None:
    """Add the words of users to the page in the search, and not to each of its sections."""
    if page.file.src_uri in WORDS:
        entries = config.plugins['material/search'].search_index.entries
        (entry,) = [entry for entry in entries if entry['location'] == page.url]
        entry['tags'] = list(WORDS[page.file.src_uri])


def to_reference(match: re.Match[str], page: str) -> str:
    """A link from a class to its source, as a link to the entry of the reference."""
    entry = entry_of(match[1])
    if not entry:
        return match[0]
    return f'[`{match[1]}`]({"../" * page.count("/")}api/{entry[0]}.md#{entry[1]})'


def link_sources(html: str) -> str:
    """Beside the import of an entry, a link to its lines of source."""
    first, *parts = re.split(r'(?=<h[23] id="cpvt_backbones\.)', html)
    for index, part in enumerate(parts):
        if source := sources().get(ENTRY.match(part)[1]):
            name, line = source
            link = f' <a href="../{name}.html#__span-0-{line}">source</a>'
            parts[index] = IMPORT.sub(lambda match, link=link: match[0] + link, part, count=1)
    return first + ''.join(parts)


def link_types(html: str) -> str:
    """Link types in signatures to the tables that explain them, where they have rows."""
    names = '|'.join(types())

    def link(match: re.Match[str]) -> str:
        return f'<a href="{types()[match[1]]}.html#type-{match[1]}">{match[1]}</a>'

    html = re.sub(rf'<autoref [^>]*>({names})</autoref>', link, html)
    return re.sub(rf'<td>(?=<code[^>]*>({names})</code></td>)', r'<td id="type-\1">', html)


def list_sections(html: str, page: Any) -> str:
    """Of a class that is alone on its page, name the sections, tables and arguments, so that links
    reach them, and list them in the contents of the page.
    """
    (title,) = page.toc.items
    entry, *others = title.children
    if others or not entry.id.startswith('cpvt_backbones.'):
        return html
    name = entry.id.rpartition('.')[2]
    end = re.compile('<h3 id="cpvt_backbones').search(html)
    head, rest = (html[: end.start()], html[end.start() :]) if end else (html, '')
    items: list[AnchorLink] = []

    def add_id(match: re.Match[str]) -> str:
        kind, text = match.lastgroup, match[match.lastgroup]
        if kind == 'heading':
            items.append(next(item for item in entry.children if item.id == text))
            return match[0]
        below = kind in ('argument', 'member')
        anchor = f'table-{text}' if kind == 'table' else f'{name}.{text}' if below else text.lower()
        label = f'Table of {text}' if kind == 'table' else text
        item = AnchorLink(label, anchor, 3 if below else 2)
        (items[-1].children if below else items).append(item)
        return re.sub(r'^<(\w+)', rf'<\1 id="{anchor}"', match[0])

    head = SECTION.sub(add_id, head)
    entry.children = items + [item for item in entry.children if item not in items]
    return head + rest


def halves(match: re.Match[str]) -> str:
    """A picture twice: on phones, each shows a half (site.css)."""
    text, source = match.groups()
    style = f'style="--ratio: {804 / 562:.3f}"'
    images = f'<img alt="{text}" src="{source}" {style}><img alt="" src="{source}" {style}>'
    return f'<span class="halves">{images}</span>'


def put_below_summary(match: re.Match[str]) -> str:
    """Put a long signature below the import and the first paragraph that follow it."""
    signature, text = match.groups()
    if signature.count('\n') <= LONG or not (summary := SUMMARY.match(text)):
        return match[0]
    return f'{summary[0]}\n{signature}{text[summary.end() :]}'


def on_post_template(output: str, template_name: str, config: Any) -> str:
    """Make the links of the page 404 relative: its script finds the folder of the site."""
    if template_name != '404.html':
        return output
    return re.sub(r'((?:href|src)="|"base": ?")/', r'\1./', output)


def with_narrow_plots(markdown: str, folder: Path) -> str:
    """On phones, show ``NAME_narrow.png`` instead of the plot ``NAME.png``, where it exists."""

    def picture(match: re.Match[str]) -> str:
        text, name = match.groups()
        if not (folder / f'{name}_narrow.png').is_file():
            return match[0]
        source = f'<source media="(max-width: 44.9em)" srcset="{name}_narrow.png">'
        return f'<picture>\n{source}\n<img src="{name}.png" alt="{text}">\n</picture>'

    return PLOT.sub(picture, markdown)


def config_of(page: str, name: str) -> str:
    """The block of a page whose first line is the comment ``name``."""
    text = (ROOT / f'{page}.md').read_text(encoding='utf-8')
    (block,) = re.findall(rf'^```python\n# {re.escape(name)}\n.+?^```', text, re.DOTALL | re.M)
    return block


def dark(name: str) -> str:
    """The file of a picture for the dark theme."""
    return name.replace('.webp', '_dark.webp') if '_dark' not in name else name


def both_themes(picture: str) -> str:
    """A picture for each theme of the site, whose button need not agree with the system."""
    light = re.sub(r'<source [^>]*scheme: dark[^>]*>\n?', '', picture)
    return ''.join(
        re.sub(r'(<img src="[^"]+)', rf'\1#only-{theme}', text)
        for theme, text in (('light', light), ('dark', light.replace('.webp', '_dark.webp')))
    )


def readme_peers() -> str:
    """The table of docs/ports.md that begins with a column of timm."""
    text = (ROOT / 'docs/ports.md').read_text(encoding='utf-8')
    (table,) = re.findall(r'^\| \| timm \|.+?\n\n', text, re.DOTALL | re.M)
    return table
