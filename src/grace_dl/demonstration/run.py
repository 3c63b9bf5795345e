"""The demo as a whole: data, networks, workers, progress, tables, pictures, verdict."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from ..bench import virtual_hosts
from ..bench.results import machine
from ..data import Images, load_images
from ..errors import GraceError, MissingExtraError
from ..output_files import write_text
from ..workers import run_workers
from . import picture, summary, train
from .estimate import estimates
from .plan import LEARNING_RATE, MOMENTUM, Result, Run, Settings


def demo(settings: Settings, runs: Sequence[Run], out: Path, console: Console) -> list[Result]:
    """Train every run on every network, show what was found, and write it to `out` with pictures beside it."""
    report = partial(console.print, markup=False, soft_wrap=True, highlight=False)
    virtual_hosts.with_links(settings.rates)  # wrong rates are told before anything is downloaded
    images = load_images(settings.task, fallback=("mnist", "digits"), report=report)
    settings = dataclasses.replace(settings, task=images.name)
    steps = train.total_steps(settings, images)
    report(
        f"{images.title}: {len(images.train_x):,} training images, {settings.workers} workers with {settings.batch_size} images "
        f"each per step, {steps} steps per method. The first network trains to the end; on the others each method trains "
        f"for {settings.seconds:g} s to measure its pace."
    )
    results, missing = _train_all(settings, runs, console)
    if missing:
        for rate, reason in missing.items():
            report(f"{summary.title_of(rate)} cannot be made here: {reason}")
        with console.status("predicting"):
            results += _estimated(settings, images, results, list(missing))
    for own in summary.networks(results).values():
        console.print(summary.table(own))
    notes = _notes(runs)
    console.print(f"[dim]{notes}[/dim]")
    _write(settings, results, images, out, notes, report)
    for line in summary.verdict(results):
        console.print(f"[bold]{line}[/bold]", highlight=False)
    return results


def _train_all(
    settings: Settings, runs: Sequence[Run], console: Console
) -> tuple[list[Result], dict[str, str]]:
    """The results of every network that can be made, and why the others cannot."""
    results: list[Result] = []
    missing: dict[str, str] = {}
    for rate in settings.rates:
        with ExitStack() as stack:
            try:
                place = stack.enter_context(virtual_hosts.network(settings.workers, rate))
            except GraceError as error:
                if rate == settings.rates[0]:
                    raise
                missing[rate] = str(error)
                continue
            own = _train_on(settings, runs, rate, place, console)
        first = {r.method: r for r in results if r.network == settings.rates[0]}
        for result in own:
            if rate != settings.rates[0]:
                _take_accuracy(result, first[result.method], console)
        results += own
    return results, missing


def _take_accuracy(result: Result, first: Result, console: Console) -> None:
    if result.digest != first.digest:
        console.print(
            f"{result.method}: parameters differ between {first.network} and {result.network} after {train.CHECKED} steps; the "
            f"accuracy shown is that of {first.network}."
        )
    result.with_accuracy_of(first)


def _train_on(
    settings: Settings, runs: Sequence[Run], rate: str, place: Any, console: Console
) -> list[Result]:
    """Train every run on one network, with a progress bar each."""
    columns = (
        TextColumn("{task.description:<26}"),
        BarColumn(),
        TextColumn("{task.completed:>5}/{task.total} steps"),
        TextColumn("{task.fields[accuracy]:>7}"),
        TimeRemainingColumn(elapsed_when_finished=True),
    )
    with Progress(*columns, console=console) as progress:
        tasks = [
            progress.add_task(f"{rate}: {r.method}", total=None, start=False, visible=False, accuracy="")
            for r in runs
        ]

        def on_event(rank: int, event: Any) -> None:
            if rank != 0:
                return
            kind, number, *rest = event
            if kind == "start":
                progress.start_task(tasks[number])
                progress.update(tasks[number], visible=True)
            elif kind == "step":
                step, total, accuracy = rest
                shown = "" if accuracy is None else f"{100 * accuracy:.1f} %"
                progress.update(tasks[number], completed=step, total=total, accuracy=shown)
            elif not console.is_terminal:  # a log gets one line per method instead of a progress bar
                result: Result = rest[0]
                console.print(f"{rate}: {result.method}, {1e3 * result.step_seconds:.1f} ms per step")

        return run_workers(  # type: ignore[no-any-return]
            train.work, settings.workers, settings, runs, rate, on_event=on_event, place=place
        )[0]


def _estimated(
    settings: Settings, images: Images, results: Sequence[Result], rates: list[str]
) -> list[Result]:
    first = [r for r in results if r.network == settings.rates[0]]
    return estimates(settings, images, first, rates)


def _notes(runs: Sequence[Run]) -> str:
    """How the figures came about."""
    common = f"rate {LEARNING_RATE:g}, momentum {MOMENTUM:g}"
    others = [
        f"{r.method} (rate {r.rate:g}, momentum {r.momentum:g})"
        for r in runs
        if (r.rate, r.momentum) != (LEARNING_RATE, MOMENTUM)
    ]
    optimizer = f"SGD with {common}" + (f", but for {', '.join(others)}" if others else "")
    return (
        f"{optimizer}; one seed each, so differences below a percent mean little. The network does not change the training: "
        "accuracy is that of the first network, and parameters are compared after a few steps. The whole "
        "training is all steps at the median pace. All workers share this machine's processors."
    )


def _write(
    settings: Settings, results: list[Result], images: Images, out: Path, notes: str, report: Any
) -> None:
    title = f"{images.title}, {results[0].parameters:,} parameters, {settings.workers} workers"
    write_text(out, json.dumps(record(settings, results), indent=2) + "\n")
    report(f"Results: {out.resolve()}")
    page = out.with_suffix(".html")
    write_text(page, picture.html(results, title, notes))
    report(f"Page: {page.resolve()}")
    try:
        picture.plot(results, title, out.with_suffix(".png"))
        report(f"Plot: {out.with_suffix('.png').resolve()}")
    except MissingExtraError as error:
        report(f"No plot: {error}")


def record(settings: Settings, results: list[Result]) -> dict[str, Any]:
    """All measurements, with machine and versions."""
    return {
        "settings": dataclasses.asdict(settings),
        "machine": machine(),
        "verdict": list(summary.verdict(results)),
        "results": [{**dataclasses.asdict(r), "seconds": r.seconds, "ratio": r.ratio} for r in results],
    }
