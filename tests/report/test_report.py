"""Reports: from what benchmarks really write to a page that is complete, says who loses, and refuses bad input."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from grace_dl.cli.main import main
from grace_dl.errors import ConfigError
from grace_dl.report import load
from grace_dl.report.breakeven import break_even
from grace_dl.report.build import html

VOID = {"meta", "link", "br", "hr", "img", "input"}


class Page(HTMLParser):
    """Checks that elements are closed in order, and collects what a page could fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.addresses: list[str] = []
        self.anchors: set[str] = set()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        for name, value in attributes:
            if name in ("href", "src", "xlink:href", "action", "srcset"):
                self.addresses.append(value or "")
            if name == "id":
                self.anchors.add(value or "")

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attributes)
        self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, f"</{tag}> closes another element"


def test_every_kind_of_result_on_one_page(measured: list[Path], tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "new" / "page.html"
    capsys.readouterr()
    assert main(["report", *map(str, measured), "--out", str(out)]) == 0
    assert capsys.readouterr().out.strip() == str(out)
    text = out.read_text("utf-8")
    page = Page()
    page.feed(text)
    assert not page.open
    # Nothing to fetch: only places on the page itself, and an icon that is empty.
    assert all(address == "data:," or address.removeprefix("#") in page.anchors for address in page.addresses)
    assert "url(" not in text and "@import" not in text
    for path in measured:
        header = json.loads(path.read_text())
        assert path.name in text and header["machine"]["processor"] in text
        assert header["date"].replace("T", " ") in text and header["machine"]["torch"] in text
        for record in header["records"]:
            assert record["method"] in text
    for caption in (
        *(
            "Step time relative to a step without communication",
            "Speed-up over plain DDP",
            "Break-even",
            "Parts of a step",
        ),
        *(
            "Accuracy against training time",
            "Accuracy against bytes sent",
            "Training time to",
            "native kernels",
        ),
        *("Bytes per rank and step",),
    ):
        assert caption in text, caption
    numbers = re.findall(r'(?:points|d|x|y|cx|cy|width|height)="([^"]*)"', text)
    assert numbers and not any("nan" in place or "inf" in place for place in numbers)


def test_the_page_stands_beside_the_first_file(measured: list[Path], tmp_path: Path, capsys: Any) -> None:
    copy = tmp_path / "step.json"
    copy.write_bytes(next(path for path in measured if path.name == "step.json").read_bytes())
    assert main(["report", str(copy)]) == 0
    assert (tmp_path / "report.html").stat().st_size > 5000


def step(method: str, rate: str, bits: float, over: float, **more: Any) -> dict[str, Any]:
    parts = {
        "forward": 1e-3,
        "backward": 1e-3,
        "compress": 1e-4,
        "wait": 1e-3 * over,
        "decode": 1e-4,
        "update": 1e-4,
    }
    return {
        "id": f"{method}/{rate}",
        "method": method,
        "model": "m",
        "workers": 2,
        "rate": rate,
        "bits": bits,
        "parts": parts,
        "leaving_bytes": 1e6,
        "seconds": 2e-3 * over,
        "reference_seconds": 2e-3,
        "over_reference": over,
        **more,
    }


def test_losing_is_shown_plainly() -> None:
    records = [
        *(step("ddp", "100mbit", 1e8, 10.0), step("ddp", "1gbit", 1e9, 2.0)),
        *(step("wins <&>", "100mbit", 1e8, 2.0), step("wins <&>", "1gbit", 1e9, 1.5)),
        *(step("loses", "100mbit", 1e8, 20.0), step("loses", "1gbit", 1e9, 3.0)),
    ]
    header = {
        "command": ["grace"],
        "date": "2026-01-01T00:00:00",
        "machine": {"processor": "p"},
        "settings": {},
    }
    text = html([load.Result("x.json", "link", header, records)])
    assert "▼ 1 of 2: loses" in text and "▼ never faster" in text and "always faster" in text
    assert "wins &lt;&amp;&gt;" in text and "<&>" not in text
    page = Page()
    page.feed(text)
    assert not page.open


@pytest.mark.parametrize(
    ("method", "baseline", "said"),
    [
        ({1e8: 1.0, 1e9: 1.0}, {1e8: 4.0, 1e9: 0.25}, "316 Mbit/s"),
        ({1e8: 1.0, 1e9: 1.0, 1e15: 1.0}, {1e8: 4.0, 1e9: 2.0, 1e15: 0.5}, "above 1 Gbit/s"),
        ({1e8: 1.0, 1e9: 1.0}, {1e8: 4.0, 1e9: 1.0}, "always faster"),
        ({1e8: 1.0, 1e9: 1.0}, {1e8: 0.9, 1e9: 0.5}, "never faster"),
        ({1e8: 1, 1e9: 1, 1e10: 1}, {1e8: 4, 1e9: 0.25, 1e10: 2}, "316 Mbit/s; faster again beyond"),
        ({1e8: 2.0, 1e9: 1.0}, {1e8: 1.0, 1e9: 2.0}, "faster from 1 Gbit/s up"),
    ],
)
def test_break_even(method: dict[float, float], baseline: dict[float, float], said: str) -> None:
    even = break_even(method, baseline)
    assert even is not None and even.text == said


def test_break_even_needs_a_common_rate() -> None:
    assert break_even({1e8: 1.0}, {1e9: 1.0}) is None


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "there is no file"),
        ("not json", "grace bench"),
        ("[]", "grace bench"),
        ("[" * 200_000, "grace bench"),
        ('{"schema": 7}', "schema 7"),
        ('{"schema": 2, "records": []}', "has no command"),
        ({"benchmark": "dance", "records": [{}]}, "known: kernels, step, link"),
        ({"benchmark": "step", "records": []}, "holds no records"),
        ({"benchmark": "step", "records": []}, "let `grace bench step` add"),
        ({"benchmark": "plan", "records": []}, "let `grace plan` add"),
        ({"benchmark": "plan", "records": [{"id": "a"}]}, "write it anew with `grace plan`."),
        ({"benchmark": "plan-check", "records": [{"id": "a"}]}, "anew with `grace plan --check`."),
        ({"benchmark": "plan-validation", "records": [{"id": "a"}]}, "anew with `grace plan --validate`."),
        ({"benchmark": "link", "records": [{"id": "a"}]}, "anew with `grace bench link --fresh`."),
        ({"benchmark": "step", "records": [{"id": "a", "method": "b"}]}, "has no model, workers"),
    ],
)
def test_bad_input_is_refused_before_anything_is_written(
    content: Any, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "in.json"
    if isinstance(content, dict):
        header = {"schema": 2, "command": [], "date": "", "machine": {}, "settings": {}}
        content = json.dumps({**header, **content})
    if content is not None:
        path.write_text(content)
    assert main(["report", str(path), "--out", str(tmp_path / "page.html")]) == 2
    shown = capsys.readouterr().err
    assert said in shown and str(path) in shown and "Traceback" not in shown
    assert not (tmp_path / "page.html").exists()


def test_bad_outputs_are_refused(
    measured: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["report", str(measured[0]), "--out", str(tmp_path / "page.txt")]) == 2
    before = measured[0].read_bytes()
    assert main(["report", str(measured[0]), "--out", str(measured[0])]) == 2
    assert measured[0].read_bytes() == before
    monkeypatch.chdir(tmp_path)
    assert main(["report"]) == 2
    with pytest.raises(ConfigError, match="folder"):
        load.read([tmp_path])


ATTACK = '"><script>alert(1)</script>'
WRONG = (
    *(ATTACK, [ATTACK], {"a": ATTACK}, {ATTACK: [{ATTACK: ATTACK}]}, "two\nlines"),
    *(None, -1, True, 1e-308, 1e308, math.inf, 10**400),
)
PUBLISHED = sorted((Path(__file__).resolve().parent.parent.parent / "benchmarks").glob("*.json"))


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every field and item in `value`, however deep, as its container and its name or number there."""
    if isinstance(value, (dict, list)):
        for at in list(value) if isinstance(value, dict) else range(min(4, len(value))):
            yield value, at
            yield from places(value[at])


def damaged(path: Path) -> Iterator[tuple[str, Any]]:
    """A result file with its first record of each kind; each field at any depth replaced by what does not belong there, or renamed."""
    content = json.loads(path.read_text())
    records = content["records"]
    # `grace plan` writes records of several kinds.
    content["records"] = list({r.get("kind"): r for r in reversed(records)}.values())[::-1]
    for place, at in list(places(content)):
        right = place[at]
        for wrong in WRONG:
            place[at] = wrong
            yield f"{at}={wrong!r}", content
        place[at] = right
        if isinstance(place, dict):
            place[ATTACK] = place.pop(at)
            yield f"{at} renamed", content
            place[at] = place.pop(ATTACK)


@pytest.fixture(scope="session")
def prediction(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A result of `grace plan`, of which none is published."""
    out = tmp_path_factory.mktemp("plan") / "plan.json"
    figures = ["--parameters", "2M", "--backward", "20ms"]
    assert main(["plan", *figures, "--methods", "int8", "--cluster", "4@1gbit", "--out", str(out)]) == 0
    return out


@pytest.mark.parametrize("path", [*PUBLISHED, None], ids=lambda path: path.stem if path else "plan")
def test_wrong_types_are_refused_or_escaped(path: Path | None, prediction: Path, tmp_path: Path) -> None:
    file = tmp_path / "in.json"
    for case, content in damaged(path or prediction):
        file.write_text(json.dumps(content))
        try:
            text = html(load.read([file]))
        except ConfigError as error:
            assert str(file) in str(error) and "\n" not in str(error), case
        else:
            assert "<script>alert" not in text, case


def test_published_results_are_read() -> None:
    text = html(load.read(PUBLISHED))
    contents = re.findall(r'<li><a href="#[^"]*">([^<]*)</a>', text)
    assert len(contents) == len(PUBLISHED) == len(set(contents)), "no two entries of the contents are alike"
    top = text.partition("<nav")[0]
    assert "In short" in top and "× faster than plain DDP" in top and "× sooner than plain DDP" in top
    assert text.count('class="legend narrow"') >= 4
