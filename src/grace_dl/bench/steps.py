"""`grace bench step`, `link` and `traffic`: what is measured where, kept and shown."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.progress import Progress

from ..errors import ConfigError, GraceError
from ..registry import method, methods, unknown
from ..workers import run_workers
from . import hosts, show, traffic
from .models import MODELS
from .results import Results
from .step import BASELINES, METHODS, Candidate, worker


def candidates(names: list[str] | None) -> list[Candidate]:
    """The baselines and the methods asked for; the usual choice if none are."""
    if names == ["all"]:
        chosen: list[Candidate] = [(name, {"compressor": name}) for name in methods()]
    else:
        chosen = [(name, {"compressor": method(name).name}) for name in names or ()] or METHODS
    return [*((label, None) for label in BASELINES), *chosen]


def measure_local(arguments: argparse.Namespace) -> int:
    """One setting, on loopback."""
    model = "small-shapes" if arguments.quick else arguments.model
    _check(model, arguments.rounds, [arguments.workers])
    console = Console()
    settings = {"model": model, "rounds": arguments.rounds}
    results = Results(arguments.out, "step", settings, arguments.fresh)
    todo = candidates(arguments.methods)
    _measure(results, console, model, arguments.workers, "loopback", todo, arguments.rounds)
    _show(results, console)
    return 0


def measure_links(arguments: argparse.Namespace) -> int:
    """Every number of hosts at every rate."""
    model = "small-shapes" if arguments.quick else arguments.model
    worlds = _numbers(arguments.workers)
    rates = arguments.rate.split(",")
    for rate in rates:
        hosts.check_rate(rate)
    _check(model, arguments.rounds, worlds)
    _check_able()
    console = Console()
    results = Results(arguments.out, "link", {"model": model, "rounds": arguments.rounds}, arguments.fresh)
    todo = candidates(arguments.methods)
    for world in worlds:
        for rate in rates:
            with hosts.Hosts(world, rate) as place:
                _measure(results, console, model, world, rate, todo, arguments.rounds, place.place())
    _show(results, console)
    picture = arguments.out.with_suffix(".png")
    show.link_picture(results.header, list(results.records.values()), picture)
    console.print(f"Picture: {picture.resolve()}", soft_wrap=True)
    return 0


def measure_traffic(arguments: argparse.Namespace) -> int:
    """One exchange in several ways between every number of hosts."""
    numel = 100_000 if arguments.quick else arguments.numel
    worlds = _numbers(arguments.workers)
    if numel < 1 or min(worlds) < 1:
        raise ConfigError("--numel and --workers must be positive.")
    _check_able()
    console = Console()
    results = Results(arguments.out, "traffic", {"numel": numel}, arguments.fresh)
    for world in worlds:
        if f"{world}/{traffic.CASES[-1][0]}" in results:
            continue
        with hosts.Hosts(world, "unlimited") as place, console.status(f"{world} hosts"):
            for record in run_workers(traffic.worker, world, numel, 5, place=place.place())[0]:
                results.add(f"{world}/{record['label']}", record)
    console.print(show.heading(results.header))
    console.print(show.traffic_table(list(results.records.values())))
    console.print(f"Figures: {arguments.out.resolve()}", soft_wrap=True)
    return 0


def _check_able() -> None:
    reason = hosts.able()
    if reason:
        raise GraceError(
            f"hosts with links of their own cannot be made: {reason}. `grace bench step` needs none."
        )


def _measure(
    results: Results,
    console: Console,
    model: str,
    world: int,
    rate: str,
    todo: list[Candidate],
    rounds: int,
    place: Callable[[int], str] | None = None,
) -> None:
    prefix = f"{model}/{world}/{rate}"
    missing = [candidate for candidate in todo if f"{prefix}/{candidate[0]}" not in results]
    if not missing:
        return
    bits = hosts.check_rate(rate) if place is not None else float("inf")
    with Progress(console=console) as progress:
        task = progress.add_task(prefix, total=len(missing))

        def on_event(rank: int, event: tuple[str, Any]) -> None:
            if rank != 0:
                return
            kind, value = event
            if kind == "begin":
                progress.update(task, description=f"{prefix}: {value}")
                return
            identity = f"{prefix}/{value['label']}"
            results.add(
                identity, {"model": model, "workers": world, "rate": rate, "bits": min(bits, 1e15), **value}
            )
            progress.advance(task)

        run_workers(worker, world, model, missing, rounds, on_event=on_event, silence=600.0, place=place)


def _show(results: Results, console: Console) -> None:
    console.print(show.heading(results.header))
    records = list(results.records.values())
    for model, world, rate in dict.fromkeys((r["model"], r["workers"], r["rate"]) for r in records):
        title = f"{model}, {world} workers with one thread each, {rate}"
        chosen = [r for r in records if (r["model"], r["workers"], r["rate"]) == (model, world, rate)]
        console.print(show.step_table(chosen, title))
    console.print(
        "[dim]silent: the same step under a hook that sends nothing, measured in turns with each row[/dim]"
    )
    console.print(f"Figures: {results.path.resolve()}", soft_wrap=True)


def _numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"--workers {text!r} must be numbers separated by commas, such as 2,4.") from None


def _check(model: str, rounds: int, worlds: list[int]) -> None:
    if model not in MODELS:
        raise unknown("model", model, MODELS)
    if rounds < 3 or min(worlds) < 1:
        raise ConfigError("--rounds must be at least 3 and --workers at least 1.")
