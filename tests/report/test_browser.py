"""The page in a real browser: it renders, sorts, raises no error, fetches nothing, and reads without scripts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import browser
from browser import browse
from grace_dl.cli.main import main

pytestmark = browser.needs_browser

ASK = """<script>
addEventListener("load", () => {
  const told = {errors: found, fetched: performance.getEntriesByType("resource").map((e) => e.name)};
  const text = (row) => row.cells[0].textContent;
  const keys = (table, column) => [...table.tBodies[0].rows].map((row) => row.cells[column].dataset.value);
  told.tables = document.querySelectorAll("table").length;
  told.charts = [...document.querySelectorAll("svg.chart")].map((chart) => {
    const open = chart.closest("details") === null || chart.closest("details").open;
    return [open, chart.getBoundingClientRect().width, chart.getBoundingClientRect().height];
  });
  // Words of charts must not run out of their picture.
  told.outside = [];
  for (const chart of document.querySelectorAll("svg.chart")) {
    const frame = chart.getBoundingClientRect();
    for (const words of chart.querySelectorAll("text")) {
      const box = words.getBoundingClientRect();
      if (box.width && (box.left < frame.left - 2 || box.right > frame.right + 2)) told.outside.push(words.textContent);
    }
  }
  told.legend = getComputedStyle(document.querySelector(".legend.narrow")).display;
  told.best = document.querySelector("section table tbody td").getBoundingClientRect().right;
  told.wide = document.documentElement.scrollWidth - document.documentElement.clientWidth;
  const table = [...document.querySelectorAll("table")].find((t) => t.caption.textContent.startsWith("Per step and rank;"));
  const column = [...table.tHead.rows[0].cells].findIndex((cell) => cell.textContent === "÷ silent");
  const button = table.tHead.rows[0].cells[column].querySelector("button");
  button.click();
  told.up = keys(table, column).map(Number);
  told.state = table.tHead.rows[0].cells[column].getAttribute("aria-sort");
  button.click();
  told.down = keys(table, column).map(Number);
  table.tHead.rows[0].cells[0].querySelector("button").click();
  told.names = [...table.tBodies[0].rows].map(text);
  told.errors = found;
  TELL
});
</script>""".replace("TELL", browser.TELL)


@pytest.fixture(scope="module")
def page(measured: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("page") / "report.html"
    assert main(["report", *map(str, measured), "--out", str(out)]) == 0
    return out


def ask(page: Path, folder: Path, *options: str) -> dict[str, Any]:
    """What the page says of itself in a browser."""
    return browser.ask(page, folder / "watched.html", ASK, folder / "profile", *options)


def test_the_page_works_on_a_phone(root: Path, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    published = sorted((root / "benchmarks").glob("*.json"))
    assert main(["report", *map(str, published), "--out", str(out)]) == 0
    told = ask(out, tmp_path, "--window-size=390,844")
    assert told["errors"] == [] and told["fetched"] == []
    assert told["wide"] <= 0, "only charts and tables scroll sideways, not the page"
    assert told["legend"] == "flex", "lines are named above the chart, as its right end is not visible"
    assert told["best"] <= 390, "the first table shows the best method without scrolling"


def test_the_page_works_in_a_browser(page: Path, tmp_path: Path) -> None:
    told = ask(page, tmp_path)
    assert told["legend"] == "none"
    assert told["errors"] == [] and told["fetched"] == []
    assert told["tables"] >= 5 and len(told["charts"]) >= 8
    assert all(width > 400 and height > 100 for opened, width, height in told["charts"] if opened)
    assert told["outside"] == [] and told["wide"] <= 0
    assert told["up"] == sorted(told["up"]) and len(told["up"]) >= 3 and told["state"] == "ascending"
    assert told["down"] == sorted(told["up"], reverse=True)
    assert told["names"] == sorted(told["names"])


def test_the_page_is_read_without_scripts(page: Path, tmp_path: Path) -> None:
    text = page.read_text("utf-8")
    plain = tmp_path / "plain.html"
    plain.write_text(text.replace("script-src 'unsafe-inline'; ", ""), "utf-8")
    shown = browse(plain, tmp_path / "profile", "--dump-dom")
    assert "<button" not in shown and shown.count("<table") == text.count("<table") and "In short" in shown


def test_a_picture_of_the_page_is_not_blank(page: Path, tmp_path: Path) -> None:
    pillow = pytest.importorskip("PIL.Image", reason="looking at a picture needs Pillow: pip install pillow")
    picture = tmp_path / "page.png"
    browse(page, tmp_path / "profile", f"--screenshot={picture}")
    colours = pillow.open(picture).convert("RGB").getcolors(1 << 24)
    assert len(colours) > 100
