"""The demo as a whole: data, workers, progress, table, plot."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from ..data import load_images
from ..workers import run_workers
from . import train
from .plan import LEARNING_RATE, MOMENTUM, Result, Run, Settings
from .plot import plot


def demo(settings: Settings, runs: Sequence[Run], folder: Path, console: Console) -> list[Result]:
    """Train every run, show the table, and write results.json and accuracy.png into `folder`."""
    images = load_images(
        settings.data,
        fallback=("mnist", "digits"),
        report=partial(console.print, markup=False, soft_wrap=True),
    )
    settings = dataclasses.replace(settings, data=images.name)
    console.print(
        f"{images.title}: {len(images.train_x):,} training images, {settings.workers} workers with "
        f"{settings.batch} images each per step, {settings.epochs:g} epochs per method."
    )
    results = _run(settings, runs, console)
    console.print(table(results))
    console.print(f"[dim]{_caveats(runs)}[/dim]")
    folder.mkdir(parents=True, exist_ok=True)
    title = f"{images.title}, {results[0].parameters:,} parameters, {settings.workers} workers"
    plot(results, title, folder / "accuracy.png")
    (folder / "results.json").write_text(json.dumps(record(settings, results), indent=2) + "\n")
    console.print(f"Results: {(folder / 'results.json').resolve()}", soft_wrap=True)
    console.print(f"Plot: {(folder / 'accuracy.png').resolve()}", soft_wrap=True)
    return results


def _run(settings: Settings, runs: Sequence[Run], console: Console) -> list[Result]:
    columns = (
        TextColumn("{task.description:<16}"),
        BarColumn(),
        TextColumn("{task.completed:>5}/{task.total} steps"),
        TextColumn("{task.fields[accuracy]:>7}"),
        TimeRemainingColumn(elapsed_when_finished=True),
    )
    with Progress(*columns, console=console) as progress:
        tasks = [
            progress.add_task(r.method, total=None, start=False, visible=False, accuracy="") for r in runs
        ]

        def on_event(rank: int, event: Any) -> None:
            if rank != 0:
                return
            kind, place, *rest = event
            if kind == "start":
                progress.start_task(tasks[place])
                progress.update(tasks[place], visible=True)
            elif kind == "step":
                step, total, accuracy = rest
                shown = "" if accuracy is None else f"{100 * accuracy:.1f} %"
                progress.update(tasks[place], completed=step, total=total, accuracy=shown)
            elif not console.is_terminal:  # a log gets one line per method instead of a progress bar
                result: Result = rest[0]
                console.print(f"{result.method}: {100 * result.accuracy:.2f} % in {result.seconds:.1f} s")

        results: list[Result] = run_workers(train.work, settings.workers, settings, runs, on_event=on_event)[
            0
        ]
    return results


def _caveats(runs: Sequence[Run]) -> str:
    """Notes below the table."""
    common = f"rate {LEARNING_RATE:g}, momentum {MOMENTUM:g}"
    others = [
        f"{r.method} (rate {r.rate:g}, momentum {r.momentum:g})"
        for r in runs
        if (r.rate, r.momentum) != (LEARNING_RATE, MOMENTUM)
    ]
    optimizer = f"SGD with {common}" + (f", but for {', '.join(others)}" if others else "")
    return (
        f"{optimizer}; one seed each, so differences below a percent mean little. All workers share this machine, and "
        "its loopback is the network: times show what compression costs here, byte counts the traffic saved on a real network."
    )


def table(results: list[Result]) -> Table:
    """The closing table."""
    shown = Table(title="Training with and without compression", title_justify="left", header_style="bold")
    shown.add_column("method", style="bold")
    for heading in ("accuracy", "sent per step", "ratio", "step time", "training"):
        shown.add_column(heading, justify="right")
    for r in results:
        shown.add_row(
            r.method,
            f"{100 * r.accuracy:.2f} %",
            f"{r.sent_per_step / 1000:,.1f} kB",
            f"{r.ratio:,.1f} ×",
            f"{r.step_ms:.1f} ms",
            f"{r.seconds:.1f} s",
        )
    return shown


def record(settings: Settings, results: list[Result]) -> dict[str, Any]:
    """All measurements, with machine and versions."""
    import torch

    from .. import __version__

    return {
        "settings": dataclasses.asdict(settings),
        "versions": {"grace": __version__, "torch": torch.__version__, "python": platform.python_version()},
        "machine": {
            "cores": os.cpu_count(),
            "system": platform.platform(),
            "processor": platform.processor(),
        },
        "results": [{**dataclasses.asdict(r), "ratio": r.ratio} for r in results],
    }
