"""Charts as SVG: lines over two axes, and horizontal bars. Every element has a tooltip.

Colours are CSS classes that the page's style defines for light and dark screens: `k0` to `k7` for methods, `plain` and
`rival` for the baselines, `rest` for series that are not highlighted.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ..formatting import escape

WIDTH = 820
LONGEST = 36
"""Maximum length of a label in charts."""
COLOURS = 8
_SHAPES = 6


@dataclass(frozen=True)
class Point:
    """A measurement, and its spread if there is one."""

    x: float
    y: float
    title: str
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Series:
    """The measurements of one method."""

    label: str
    kind: str
    points: list[Point]


@dataclass(frozen=True)
class Axis:
    """What an axis shows; `ticks` are pairs of value and text, chosen automatically by default."""

    title: str
    log: bool = False
    ticks: Sequence[tuple[float, str]] = ()
    unit: str = ""


@dataclass(frozen=True)
class Mark:
    """A horizontal line with a label, such as a target; `below` shades the area under it."""

    y: float
    text: str
    below: bool = False


@dataclass(frozen=True)
class Bar:
    """A row of a bar chart: parts in order as (class, length, title), and a text after it."""

    label: str
    parts: Sequence[tuple[str, float, str]]
    note: str = ""
    style: str = ""

    @property
    def total(self) -> float:
        return sum(length for _, length, _ in self.parts)


@dataclass
class _Scale:
    """From values to positions on the page."""

    low: float
    high: float
    start: float
    end: float
    log: bool
    ticks: list[tuple[float, str]] = field(default_factory=list)

    def __call__(self, value: float) -> float:
        if self.log:
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)


def styles(ranked: Sequence[str], plain: str, rival: str) -> dict[str, str]:
    """A class for each label; the first in the ranking get the colours, the baselines have their own.

    >>> styles(["topk", "ddp", "int8"], "ddp", "hook")
    {'ddp': 'plain', 'hook': 'rival', 'topk': 'k0', 'int8': 'k1'}
    """
    found = {plain: "plain", rival: "rival"}
    others = [label for label in ranked if label not in found]
    for place, label in enumerate(others):
        found[label] = f"k{place}" if place < COLOURS else "rest"
    return found


def _short(label: str) -> str:
    """A label shortened for charts; the tooltip has the whole label."""
    return escape(label if len(label) <= LONGEST else f"{label[: LONGEST - 1]}…")


def _width(labels: Iterable[str]) -> int:
    """Pixels that the longest label takes."""
    return int(7.4 * min(LONGEST, max(map(len, labels), default=0)))


def lines(
    name: str, series: Sequence[Series], x: Axis, y: Axis, marks: Sequence[Mark] = (), height: int = 400
) -> str:
    """One line per series, labelled at its end; the spread over seeds as a band."""
    left, top, bottom = 64, 14, 52
    right = max(170, 26 + _width(one.label for one in series))
    xs = [p.x for s in series for p in s.points] + [value for value, _ in x.ticks]
    ys = [v for s in series for p in s.points for v in (p.y, p.low, p.high) if v is not None]
    ys += [mark.y for mark in marks]
    across = _scale(xs, x, left, WIDTH - right, 0.02)
    up = _scale(ys, y, height - bottom, top, 0.04)
    out = [_open(name, height)]
    for mark in marks:
        place = up(mark.y)
        if mark.below:
            out.append(
                f'<rect class="losing" x="{left}" y="{place:.1f}" width="{WIDTH - right - left}" '
                f'height="{max(0.0, height - bottom - place):.1f}"/>'
            )
    out += _axes(across, up, x, y, left, WIDTH - right, top, height - bottom)
    for mark in marks:
        place = up(mark.y)
        out.append(f'<line class="mark" x1="{left}" x2="{WIDTH - right}" y1="{place:.1f}" y2="{place:.1f}"/>')
    # The most important series are drawn last, on top of the others.
    order = {"rest": 0, "rival": 2, "plain": 3}
    for one in sorted(series, key=lambda s: order.get(s.kind, 1)):
        out.append(_line(one, across, up))
    for mark in marks:  # on top of the lines, or they could not be read
        out.append(f'<text class="note" x="{left + 6}" y="{up(mark.y) - 5:.1f}">{escape(mark.text)}</text>')
    named = [s for s in series if s.kind != "rest" or len(series) <= COLOURS + 2]
    out += _names(named, across, up, WIDTH - right, top, height - bottom)
    # A narrow screen does not show the right end of the chart, where the names are.
    return "".join([legend([(s.kind, s.label) for s in named], "legend narrow"), *out, "</svg>"])


def bars(
    name: str, rows: Sequence[Bar], title: str, mark: tuple[float, str] | None = None, whole: bool = False
) -> str:
    """Horizontal bars of one or several parts. Bars far longer than the others are truncated and marked unless `whole`.

    A row without a label belongs to the one above it.
    """
    left, right, top, step = 16 + _width(row.label for row in rows), 150, 26, 24
    grouped = any(not row.label for row in rows)
    gaps = [8 if grouped and row.label and place else 0 for place, row in enumerate(rows)]
    floor = top + step * len(rows) + sum(gaps)
    totals = sorted(row.total for row in rows if row.total > 0) or [1.0]
    usual = totals[len(totals) // 2]
    limit = totals[-1] if whole else max(total for total in totals if total <= 3 * usual)
    if mark is not None:
        limit = max(limit, mark[0])
    across = _scale([0.0, limit], Axis(title), left, WIDTH - right, 0.0)
    out = [_open(name, floor + 44)]
    for value, text in across.ticks:
        out.append(
            f'<line class="grid" x1="{across(value):.1f}" x2="{across(value):.1f}" y1="{top}" y2="{floor}"/>'
        )
        out.append(
            f'<text class="tick" x="{across(value):.1f}" y="{floor + 16}" text-anchor="middle">{escape(text)}</text>'
        )
    out.append(
        f'<text class="axis" x="{(left + WIDTH - right) / 2:.0f}" y="{floor + 36}" text-anchor="middle">{escape(title)}</text>'
    )
    values = []  # written last, over the mark
    y = top - step
    for gap, row in zip(gaps, rows):
        y += step + gap
        out.append(
            f'<text class="label" x="{left - 8:.0f}" y="{y + 16}" text-anchor="end">{_short(row.label)}</text>'
        )
        start = 0.0
        for kind, length, words in row.parts:
            begin, end = across(min(start, limit)), across(min(start + length, limit))
            if end > begin:
                out.append(
                    f'<rect class="{kind}" x="{begin:.1f}" y="{y + 4}" width="{end - begin:.1f}" height="{step - 7}">'
                    f"<title>{escape(f'{row.label}: {words}')}</title></rect>"
                )
            start += length
        cut = row.total > limit * 1.0001
        end = across(min(row.total, limit))
        if cut:
            out.append(f'<path class="cut" d="M{end - 14:.1f} {y + 1}l7 {step - 2}m6 0l-7 -{step - 2}"/>')
        note = row.note if not cut else f"{row.note} →"
        values.append(f'<text class="value {row.style}" x="{end + 7:.1f}" y="{y + 16}">{escape(note)}</text>')
    if mark is not None:
        at = across(mark[0])
        out.append(f'<line class="mark" x1="{at:.1f}" x2="{at:.1f}" y1="{top - 4}" y2="{floor}"/>')
        out.append(
            f'<text class="note" x="{at:.1f}" y="{top - 10}" text-anchor="middle">{escape(mark[1])}</text>'
        )
    return "".join([*out, *values, "</svg>"])


def legend(entries: Sequence[tuple[str, str]], style: str = "legend") -> str:
    """Names of classes, for bars of several parts and for lines on narrow screens."""
    keys = "".join(
        f'<li><svg width="14" height="14" aria-hidden="true"><rect class="{kind}" width="14" height="14" rx="2"/></svg>'
        f"{escape(text)}</li>"
        for kind, text in entries
    )
    return f'<ul class="{style}">{keys}</ul>'


def _open(name: str, height: int) -> str:
    return (
        f'<svg class="chart" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(name)}" '
        'preserveAspectRatio="xMinYMin meet">'
    )


def _scale(values: Sequence[float], axis: Axis, start: float, end: float, margin: float) -> _Scale:
    """The range of an axis with a margin at both ends, and its ticks."""
    low, high = min(values), max(values)
    if axis.log:
        low, high = math.log10(low), math.log10(high)
    if high - low < 1e-9:
        low, high = low - 0.5, high + 0.5
    low, high = low - margin * (high - low), high + margin * (high - low)
    ticks = list(axis.ticks)
    if axis.log:
        low, high = 10**low, 10**high
        ticks = ticks or _log_ticks(low, high)
    else:
        ticks = ticks or _linear_ticks(low, high)
    return _Scale(low, high, start, end, axis.log, [(v, t) for v, t in ticks if low <= v <= high])


def _linear_ticks(low: float, high: float) -> list[tuple[float, str]]:
    rough = (high - low) / 6
    base = 10 ** math.floor(math.log10(rough))
    step = base * next(factor for factor in (1, 2, 5, 10) if factor * base >= rough)
    places = max(0, -math.floor(math.log10(step)))
    first = math.ceil(low / step - 1e-9)
    count = math.floor(high / step + 1e-9) - first + 1
    return [((first + i) * step, f"{(first + i) * step:,.{places}f}") for i in range(count)]


def _log_ticks(low: float, high: float) -> list[tuple[float, str]]:
    decades = math.log10(high / low)
    factors = (1, 2, 5) if decades < 3 else (1,)
    if decades < 0.7:
        factors = (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8)  # type: ignore[assignment]
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [(f * 10.0**power, f"{f * 10.0**power:,.10g}") for power in powers for f in factors]


def _axes(
    across: _Scale, up: _Scale, x: Axis, y: Axis, left: float, right: float, top: float, bottom: float
) -> list[str]:
    out = []
    for value, text in up.ticks:
        out.append(f'<line class="grid" x1="{left}" x2="{right}" y1="{up(value):.1f}" y2="{up(value):.1f}"/>')
        out.append(
            f'<text class="tick" x="{left - 8}" y="{up(value) + 4:.1f}" text-anchor="end">{escape(text + y.unit)}</text>'
        )
    for value, text in across.ticks:
        place = across(value)
        out.append(f'<line class="grid" x1="{place:.1f}" x2="{place:.1f}" y1="{top}" y2="{bottom}"/>')
        out.append(
            f'<text class="tick" x="{place:.1f}" y="{bottom + 18}" text-anchor="middle">{escape(text + x.unit)}</text>'
        )
    middle = (top + bottom) / 2
    out.append(
        f'<text class="axis" x="{(left + right) / 2:.0f}" y="{bottom + 40}" text-anchor="middle">{escape(x.title)}</text>'
    )
    out.append(
        f'<text class="axis" transform="translate(15 {middle:.0f}) rotate(-90)" text-anchor="middle">{escape(y.title)}</text>'
    )
    return out


def _line(one: Series, across: _Scale, up: _Scale) -> str:
    places = [(across(p.x), up(p.y), p) for p in one.points]
    out = [f'<g class="series {one.kind}"><title>{escape(one.label)}</title>']
    band = [(x, p.low, p.high) for x, _, p in places if p.low is not None and p.high is not None]
    if band and any(high > low for _, low, high in band):
        edge = [f"{x:.1f},{up(high):.1f}" for x, _, high in band]
        edge += [f"{x:.1f},{up(low):.1f}" for x, low, _ in reversed(band)]
        out.append(f'<polygon class="band" points="{" ".join(edge)}"/>')
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in places)
    out.append(f'<polyline points="{path}"/>')
    shape = _shape(one.kind)
    for x, y, point in places:
        out.append(
            f'<g class="dot">{_marker(shape, x, y)}<circle class="reach" cx="{x:.1f}" cy="{y:.1f}" r="9"/>'
            f"<title>{escape(point.title)}</title></g>"
        )
    return "".join([*out, "</g>"])


def _shape(kind: str) -> int:
    return int(kind[1:]) % _SHAPES if kind.startswith("k") else 0


def _marker(shape: int, x: float, y: float) -> str:
    """Marker shapes distinguish series that share a colour."""
    outlines = {
        1: "m-3.5 -3.5h7v7h-7z",
        2: "m0 -4.6l4.6 8h-9.2z",
        3: "m0 -5l5 5l-5 5l-5 -5z",
        4: "m0 4.6l4.6 -8h-9.2z",
        5: "m-1.5 -5h3v3.5h3.5v3h-3.5v3.5h-3v-3.5h-3.5v-3h3.5z",
    }
    if shape not in outlines:
        return f'<circle class="point" cx="{x:.1f}" cy="{y:.1f}" r="3.6"/>'
    return f'<path class="point" d="M{x:.1f} {y:.1f}{outlines[shape]}"/>'


def _names(
    series: Sequence[Series], across: _Scale, up: _Scale, right: float, top: float, bottom: float
) -> list[str]:
    """Each name at the end of its line, moved apart where they would overlap."""
    ends = sorted(
        ((up(s.points[-1].y), across(s.points[-1].x), s) for s in series if s.points), key=lambda e: e[0]
    )
    if not ends:
        return []
    places = _apart([y for y, _, _ in ends], min(15.0, (bottom - top) / len(ends)), top, bottom)
    out = []
    for (y, x, s), place in zip(ends, places):
        if right - x < 60:
            out.append(
                f'<path class="lead {s.kind}" d="M{x + 6:.1f} {y:.1f}L{right + 8:.1f} {place:.1f}h6"/>'
            )
        else:
            # A leader line would cross the chart; a sample of the line precedes the name instead.
            sample = f'<polyline points="{right + 2},{place:.1f} {right + 16},{place:.1f}"/>'
            out.append(f'<g class="series {s.kind}">{sample}{_marker(_shape(s.kind), right + 9, place)}</g>')
        out.append(
            f'<text class="name {s.kind}" x="{right + 20:.1f}" y="{place + 4:.1f}">{_short(s.label)}</text>'
        )
    return out


def _apart(wanted: Sequence[float], gap: float, top: float, bottom: float) -> list[float]:
    """Positions in the same order, at least `gap` apart and as close as possible to the wanted ones.

    >>> _apart([10.0, 10.0, 50.0], 4.0, 0.0, 100.0)
    [8.0, 12.0, 50.0]
    """
    groups: list[list[float]] = []  # sums of wanted positions, and group sizes
    for y in wanted:
        groups.append([y, 1])
        while (
            len(groups) > 1
            and _middle(groups[-1]) - _middle(groups[-2]) < gap * (groups[-1][1] + groups[-2][1]) / 2
        ):
            total, count = groups.pop()
            groups[-1][0] += total
            groups[-1][1] += count
    found = []
    for group in groups:
        count = group[1]
        half = gap * (count - 1) / 2
        middle = min(max(_middle(group), top + half), bottom - half)
        found += [middle - half + gap * i for i in range(int(count))]
    # Groups moved by the edges may overlap again.
    for i in range(1, len(found)):
        found[i] = max(found[i], found[i - 1] + gap)
    return found


def _middle(group: Sequence[float]) -> float:
    return group[0] / group[1]
