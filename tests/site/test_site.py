"""The documentation site: built strictly, complete, with links that hold, and nothing fetched from elsewhere."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

import browser
import grace_dl
from grace_dl import catalog

for package in ("sphinx", "myst_parser", "furo"):
    pytest.importorskip(package, reason="the site needs Sphinx: pip install 'grace-dl[docs]'")


@pytest.fixture(scope="module")
def site(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "scripts.site", str(out)],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=280,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return out


class Page(HTMLParser):
    """The links, the names to link to, and what a browser would fetch."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.names: set[str] = set()
        self.fetched: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attributes}
        self.names |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if tag == "link" and given.get("rel") != "canonical":
            self.fetched.append(given["href"])
        if "src" in given:
            self.fetched.append(given["src"])


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    # The report is a page of its own, with tests of its own.
    files = [path for path in sorted(site.rglob("*.html")) if path.name != "report.html"]
    return {path: Page(path.read_text("utf-8")) for path in files}


def test_every_method_has_a_page(site: Path) -> None:
    overview = (site / "docs" / "methods.html").read_text("utf-8")
    for name in catalog.builtin_names():
        page = (site / "methods" / f"{name}.html").read_text("utf-8")
        for part in ("settings", "bytes-on-the-wire", "implementation"):
            assert f'id="{part}"' in page
        assert f"../methods/{name}.html" in overview


def test_every_setting_is_explained(site: Path) -> None:
    empty = re.compile(
        r"<td><p><code[^>]*><span class=\"pre\">(\w+)</span></code></p></td>\s*<td>.*?</td>\s*<td></td>",
        re.DOTALL,
    )
    for name in catalog.builtin_names():
        table = (site / "methods" / f"{name}.html").read_text("utf-8").partition('id="settings"')[2]
        assert not empty.findall(table.partition("</table>")[0]), f"{name}: a setting without a meaning"


def test_measured_accuracy_is_shown(site: Path) -> None:
    for name in ("topk", "powersgd", "dgc"):
        assert "Accuracy:" in (site / "methods" / f"{name}.html").read_text("utf-8")


def test_every_document_has_a_page(site: Path, root: Path) -> None:
    for page in (root / "docs").glob("*.md"):
        assert (site / "docs" / f"{page.stem}.html").exists(), f"{page.name} is not in the site"
    front = (site / "index.html").read_text("utf-8")
    for caption in ("Start", "Guides", "How it works", "Methods", "Benchmarks", "API"):
        assert f'<span class="caption-text">{caption}</span>' in front


def test_every_public_name_is_in_the_reference(site: Path) -> None:
    from sphinx.util.inventory import InventoryFile

    with (site / "objects.inv").open("rb") as file:
        inventory = InventoryFile.load(file, "", os.path.join)
    names = {name for kind, entries in inventory.items() if kind.startswith("py:") for name in entries}
    assert {f"grace_dl.{name}" for name in grace_dl.__all__ if name != "__version__"} <= names


def test_links_resolve(pages: dict[Path, Page]) -> None:
    missing = [f"{page.name}: {link}" for page in pages for link in broken(page, pages)]
    assert missing == []


def broken(page: Path, pages: dict[Path, Page]) -> Iterator[str]:
    for link in pages[page].links:
        parts = urlsplit(link)
        if parts.scheme or parts.netloc:
            continue
        target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
        names = pages[target].names if target in pages and parts.fragment else {unquote(parts.fragment)}
        if not target.is_file() or unquote(parts.fragment) not in names:
            yield link


def test_nothing_is_fetched_from_elsewhere(site: Path, pages: dict[Path, Page]) -> None:
    for path, page in pages.items():
        for address in page.fetched:
            parts = urlsplit(address)
            assert not parts.scheme or parts.scheme == "data", f"{path.name} fetches {address}"
            if parts.path and not parts.scheme:
                assert (path.parent / unquote(parts.path)).is_file(), f"{path.name} lacks {address}"
    for style in site.rglob("*.css"):
        assert not re.search(r"(url\(\s*['\"]?|@import\s+['\"])https?:", style.read_text("utf-8")), style.name


def test_the_search_index_holds_pages_and_names(site: Path) -> None:
    text = (site / "searchindex.js").read_text("utf-8")
    index = json.loads(text[text.index("(") + 1 : text.rindex(")")])
    assert {"index", "methods/powersgd", "docs/fsdp", "api/attaching"} <= set(index["docnames"])
    assert {"topk", "residu"} <= set(index["terms"])  # words are stemmed


LOOK = f"""<script>
addEventListener("load", () => setTimeout(() => {{
  const told = {{errors: found, results: document.querySelectorAll("#search-results li").length}};
  told.wide = document.documentElement.scrollWidth - document.documentElement.clientWidth;
  told.elsewhere = performance.getEntriesByType("resource").map((e) => e.name).filter((name) => !name.startsWith("file:"));
  told.background = getComputedStyle(document.body).backgroundColor;
  {browser.TELL}
}}, 1500));
</script>"""
WAIT = "--virtual-time-budget=6000"


@browser.needs_browser
@pytest.mark.parametrize("name", ["index", "docs/benchmarks", "methods/dgc", "api/attaching"])
def test_pages_work_on_a_phone(site: Path, tmp_path: Path, name: str) -> None:
    page = site / f"{name}.html"
    told = browser.ask(page, page.with_name("watched.htm"), LOOK, tmp_path, WAIT, "--window-size=390,844")
    assert told["errors"] == [] and told["elsewhere"] == []
    assert told["wide"] <= 0, "only code and tables scroll sideways, not the page"


@browser.needs_browser
def test_search_works_without_a_server(site: Path, tmp_path: Path) -> None:
    page = site / "search.html"
    watched = page.with_name("watched.htm")
    browser.ask(page, watched, LOOK, tmp_path, WAIT)
    shown = browser.browse(f"{watched.as_uri()}?q=powersgd", tmp_path, "--dump-dom", WAIT)
    assert "methods/powersgd.html" in shown
