"""What the demo found: a table and bars for each network, and the verdict."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.table import Table

from ..bench.selection import DDP
from ..bench.virtual_hosts import LOOPBACK, recorded_bits
from ..formatting import duration, milliseconds, number, percent, rate, size
from .paying_links import paying_links
from .plan import Result

_BAR = 24
CLOSE = 0.01
"""Methods are recommended if their accuracy is at most this far below that of plain DDP."""


def networks(results: Sequence[Result]) -> dict[str, list[Result]]:
    """Results by network, in the order they were made."""
    found: dict[str, list[Result]] = {}
    for result in results:
        found.setdefault(result.network, []).append(result)
    return found


def title_of(network: str) -> str:
    """A network as text.

    >>> title_of("loopback"), title_of("100mbit")
    ('loopback (no link)', 'a 100 Mbit/s link')
    """
    if network == LOOPBACK:
        return "loopback (no link)"
    return "a link without limit" if network == "unlimited" else f"a {rate(recorded_bits(network))} link"


def plain_of(results: Sequence[Result]) -> Result | None:
    """The baseline among results of one network."""
    return next((r for r in results if r.method == DDP), None)


def table(results: Sequence[Result]) -> Table:
    """The results of one network."""
    plain = plain_of(results)
    estimated = " (estimated by `grace plan`)" if not results[0].timed else ""
    shown = Table(
        title=f"Training on {title_of(results[0].network)}{estimated}",
        title_justify="left",
        header_style="bold",
    )
    shown.add_column("method", style="bold")
    for heading in ("accuracy", "sent per step", "step", "whole training"):
        shown.add_column(heading, justify="right")
    shown.add_column("")
    shown.add_column("over plain DDP", justify="right")
    longest = max(r.seconds for r in results)
    for r in results:
        gain = None if plain is None or r is plain else plain.seconds / r.seconds
        colour = "" if gain is None else "green" if gain >= 1 else "red"
        bar = "█" * max(1, round(_BAR * r.seconds / longest))
        shown.add_row(
            r.method,
            f"{percent(r.accuracy)} %",
            size(r.sent_per_step),
            milliseconds(r.step_seconds),
            duration(r.seconds),
            f"[{colour}]{bar}[/]" if colour else bar,
            "" if gain is None else f"[{colour}]{_gain(gain)}[/]",
        )
    return shown


def _gain(gain: float) -> str:
    return f"{number(gain)} × faster" if gain >= 1 else f"{number(1 / gain)} × slower"


def verdict(results: Sequence[Result]) -> Iterator[str]:
    """One sentence for each network, what was faster, by how much, at which accuracy; then for which links methods pay."""
    for network, own in networks(results).items():
        plain = plain_of(own)
        others = [r for r in own if r is not plain]
        if plain is None or not others:
            continue
        close = [r for r in others if _is_close(r, plain)]
        best = min(close or others, key=lambda r: r.seconds)
        gain = plain.seconds / best.seconds
        accuracy = f"{percent(best.accuracy)} % against {percent(plain.accuracy)} %"
        where = title_of(network)
        if not best.timed:
            yield (
                f"On {where}, {best.method} would train {number(max(gain, 1 / gain))} × {'faster' if gain >= 1 else 'slower'} than "
                f"plain DDP by estimate, at {accuracy} accuracy."
            )
        elif gain >= 1:
            yield f"On {where}, {best.method} trained {number(gain)} × faster than plain DDP, at {accuracy} accuracy."
        else:
            yield (
                f"On {where}, no method was faster than plain DDP: {best.method} took {number(1 / gain)} × as long, at "
                f"{accuracy} accuracy."
            )
    everywhere = networks(results)
    first = next(iter(everywhere.values()), [])
    plain = plain_of(first)
    others = [r for r in first if r is not plain]
    close = [r for r in others if _is_close(r, plain)]
    pays = paying_links(everywhere, [r.method for r in close or others], DDP) if plain else None
    if pays is not None:
        yield pays


def _is_close(result: Result, plain: Result | None) -> bool:
    """Whether a method's accuracy is about that of plain DDP."""
    return plain is not None and result.accuracy >= plain.accuracy - CLOSE
