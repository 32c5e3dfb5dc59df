"""Every page of the site in Chromium: accessibility, overflow, errors; `make test-site` runs it."""

import functools
import os
import subprocess
import sys
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

pytestmark = pytest.mark.slow
sync_api = pytest.importorskip('playwright.sync_api')
axe = pytest.importorskip('axe_playwright_python.sync_playwright')

ROOT = Path(__file__).parents[2]
SIZED = """() => [...document.querySelectorAll('.md-sidebar')].every((bar) => (
    !bar.getClientRects().length
    || getComputedStyle(bar).position !== 'sticky'
    || bar.querySelector('.md-sidebar__scrollwrap').style.height !== ''
))"""
# Files of the pictures that are not hidden.
SHOWN = """() => Promise.all([...document.querySelectorAll('img[src*="#only-"]')]
    .filter((image) => getComputedStyle(image).display !== 'none')
    .map(async (image) => {
        image.loading = 'eager'
        await image.decode()
        return image.currentSrc
    }))"""
# Choose the other theme, as its switch does; the page keeps it.
SWITCH = """() => {
    document.querySelector('label[for^=__palette]:not([hidden])').click()
    return new Promise(requestAnimationFrame)
}"""
THEME = '() => document.body.dataset.mdColorScheme'
# What axe checks in each theme.
LIGHT = dict(resultTypes=['violations'])
DARK = dict(LIGHT, runOnly=['color-contrast', 'link-in-text-block'])
WINDOWS = {'desktop': (1440, 900), 'phone': (390, 844)}


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *arguments):
        pass


@pytest.fixture(scope='module')
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp('site')
    command = [sys.executable, '-m', 'mkdocs', 'build', '-f', ROOT / 'docs/mkdocs.yml']
    command += ['-d', folder]
    environment = {**os.environ, 'NO_MKDOCS_2_WARNING': '1'}
    subprocess.run(command, check=True, capture_output=True, env=environment)
    handler = functools.partial(QuietHandler, directory=folder)
    with ThreadingHTTPServer(('127.0.0.1', 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield folder, f'http://127.0.0.1:{server.server_port}'
        server.shutdown()


@pytest.mark.parametrize('window', WINDOWS)
def test_pages_are_accessible_and_fit_the_window(site, browser, window):
    """Axe's rules in the light theme, those of colours and the width in both."""
    width, height = WINDOWS[window]
    context = browser.new_context(
        viewport=dict(width=width, height=height), color_scheme='light', reduced_motion='reduce'
    )
    page = context.new_page()
    errors = []
    page.on('pageerror', lambda error: errors.append(str(error)))
    faults, themes = [], set()
    folder, address = site
    pages = sorted(folder.rglob('*.html'))
    for file in pages:
        name = file.relative_to(folder).as_posix()
        page.goto(f'{address}/{name}')
        page.wait_for_function(SIZED)
        for options in (LIGHT, DARK):
            theme = page.evaluate(THEME)
            themes.add((name, theme))
            found = axe.Axe().run(page, options=options).response['violations']
            faults += [(name, theme, one['id'], one['nodes'][0]['html'][:200]) for one in found]
            wide = page.evaluate('document.documentElement.scrollWidth')
            if wide > width:
                faults.append((name, theme, 'overflow', f'{wide} px'))
            page.evaluate(SWITCH)
    context.close()
    assert len(pages) > 50 and len(themes) == 2 * len(pages)
    assert not faults
    assert not errors


def test_a_wide_table_of_words_becomes_cards_on_a_phone(site, browser):
    """Each cell says which column it is of. A table of many rows or of numbers stays one."""
    page = browser.new_page()
    for width, cards in ((1440, False), (390, True)):
        page.set_viewport_size(dict(width=width, height=844))
        page.goto(f'{site[1]}/docs/evidence.html')
        tables = page.locator('article table.stacked')
        assert (tables.count() > 0) == cards
    heads = tables.first.locator('th').all_text_contents()
    cells = tables.first.locator('tbody tr').first.locator('td')
    shown = [cell.get_attribute('data-column').strip() for cell in cells.all()]
    assert shown == [' '.join(head.split()) for head in heads]
    page.goto(f'{site[1]}/docs/models.html')
    assert page.locator('article table:not(.stacked)').count() > 0
    page.close()


def test_the_field_of_a_table_leaves_the_rows_with_all_of_its_words(site, browser):
    page = browser.new_page()
    page.goto(f'{site[1]}/docs/models.html')
    field = page.locator('input.rows').first
    rows = page.locator('#ade20k ~ .md-typeset__scrollwrap').first.locator('tbody tr')
    count = rows.count()
    field.fill('upernet twins')
    shown = rows.locator('visible=true').all_inner_texts()
    assert 0 < len(shown) < count
    assert all('upernet' in text.lower() and 'twins' in text.lower() for text in shown)
    field.fill('')
    assert rows.locator('visible=true').count() == count
    page.close()


def test_on_a_phone_each_model_shows_name_and_score(site, browser):
    context = browser.new_context(viewport=dict(width=390, height=844))
    page = context.new_page()
    page.goto(f'{site[1]}/docs/models.html')
    models = page.locator('.models table').all()
    for row in (row for table in models for row in table.locator('tbody tr').all()):
        score = row.locator('td').nth(1)
        box = score.bounding_box()
        assert box['x'] + box['width'] <= 390, row.inner_text()
        assert score.evaluate('cell => getComputedStyle(cell).whiteSpace') == 'nowrap'
    context.grant_permissions(['clipboard-read', 'clipboard-write'])
    models[-1].locator('button.copy').nth(1).click()  # of those that ship
    name = page.evaluate('navigator.clipboard.readText()')
    assert name == 'retinanet_cpvt_tiny_gap-bccd'
    context.close()


def test_pictures_follow_the_switch_of_the_site(site, browser):
    context = browser.new_context(color_scheme='dark', reduced_motion='reduce')
    page = context.new_page()
    page.goto(f'{site[1]}/docs/models.html')
    for is_dark in (True, False):
        sources = page.evaluate(SHOWN)
        assert len(sources) == 3
        assert {'_dark.webp' in source for source in sources} == {is_dark}
        page.locator('label[for^=__palette]').locator('visible=true').click()
    context.close()


def test_on_a_phone_code_scrolls_and_a_command_wraps_between_words(site, browser):
    page = browser.new_page(viewport=dict(width=390, height=844))
    page.goto(f'{site[1]}/docs/mmdet.html')
    code = page.locator('.language-python pre > code').first
    assert code.evaluate('code => getComputedStyle(code).whiteSpace') == 'pre'
    assert code.evaluate('code => code.scrollWidth > code.clientWidth')
    page.goto(f'{site[1]}/docs/own_data.html')
    page.evaluate("""() => {
        const code = document.querySelector('.language-bash pre > code')
        code.textContent = 'python tools/infer.py CONFIG CHECKPOINT photos/ --long-side 800'
        const script = document.createElement('script')
        script.src = '../code.js'
        return new Promise((done) => { script.onload = done; document.body.append(script) })
    }""")
    command = page.locator('.language-bash pre > code').first
    assert command.evaluate('code => code.scrollWidth == code.clientWidth')
    words = command.locator('.word')
    assert words.all_text_contents()[-2:] == ['--long-side', '800']
    assert {word.evaluate('word => word.getClientRects().length') for word in words.all()} == {1}
    page.goto(site[1])  # its commands have several lines
    assert page.locator('code.command').count() > 0
    for command in page.locator('code.command').all():
        assert command.evaluate('code => code.scrollWidth == code.clientWidth')
    page.close()


def test_a_click_on_a_heading_sorts_models_by_their_score(site, browser):
    page = browser.new_page()
    page.goto(f'{site[1]}/docs/models.html')
    for part, column in (('#ade20k', 'mIoU'), ('#imagenet-1k', 'top-1')):
        table = page.locator(f'{part} ~ .md-typeset__scrollwrap').first
        head = table.locator('th', has_text=column)
        head.click()
        scores = [float(text) for text in table.locator('td:nth-child(2)').all_inner_texts()]
        assert scores == sorted(scores, reverse=True)
        head.click()
        scores = [float(text) for text in table.locator('td:nth-child(2)').all_inner_texts()]
        assert len(scores) > 5 and scores == sorted(scores)
    page.close()
