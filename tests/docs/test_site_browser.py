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


@pytest.mark.parametrize('theme', ['light', 'dark'])
@pytest.mark.parametrize('window', WINDOWS)
def test_pages_are_accessible_and_fit_the_window(site, browser, window, theme):
    width, height = WINDOWS[window]
    context = browser.new_context(
        viewport=dict(width=width, height=height), color_scheme=theme, reduced_motion='reduce'
    )
    page = context.new_page()
    errors = []
    page.on('pageerror', lambda error: errors.append(str(error)))
    faults = []
    folder, address = site
    pages = sorted(folder.rglob('*.html'))
    for file in pages:
        name = file.relative_to(folder).as_posix()
        page.goto(f'{address}/{name}')
        found = axe.Axe().run(page).response['violations']
        faults += [(name, one['id'], one['nodes'][0]['html'][:200]) for one in found]
        wide = page.evaluate('document.documentElement.scrollWidth')
        if wide > width:
            faults.append((name, 'overflow', f'{wide} px'))
    context.close()
    assert len(pages) > 50
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
    page.goto(f'{site[1]}/docs/weights.html')
    assert page.locator('article table.stacked').count() > 0
    assert page.locator('article table:not(.stacked)').count() > 0
    page.close()


def test_a_long_table_is_filtered_by_words(site, browser):
    page = browser.new_page()
    page.goto(f'{site[1]}/docs/weights.html')
    field = page.locator('input.rows').last
    rows = page.locator('article table').last.locator('tbody tr')
    count = rows.count()
    field.fill('DINOv3 small')
    shown = [row.inner_text().lower() for row in rows.all() if row.is_visible()]
    assert 0 < len(shown) < count
    assert all('dinov3' in text and 'small' in text for text in shown)
    field.fill('')
    assert all(row.is_visible() for row in rows.all())
    page.close()
