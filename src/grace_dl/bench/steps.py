"""`grace bench step`, `link` and `traffic`: what is measured where, kept and shown."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.progress import Progress

from ..console import output
from ..errors import ConfigError, GraceError
from ..registry import unknown
from ..train.world import find
from ..workers import run_workers
from . import hostlist, hosts, show, traffic
from .candidates import candidates
from .grid import grid_table, speeds
from .results import Results
from .step import THROUGH, Candidate, remote_worker, worker
from .workload import Workload, workloads

SILENCE = 1800.0
"""Seconds a step may take: large batches on a slow machine take minutes."""


def measure_local(arguments: argparse.Namespace) -> int:
    """Models on local workers, or on those of a list of hosts; one file holds them all."""
    asked = _asked(arguments)
    todo = candidates(arguments.methods, arguments.rank, _doors(arguments.through))
    if find().launcher != "none":
        raise ConfigError(
            f"`grace bench step` starts its workers itself, but runs under {find().launcher}; call it on its own, with "
            "--workers and --hosts."
        )
    _check(arguments.rounds, [arguments.workers], arguments.threads)
    names = hostlist.parse(arguments.hosts or "", arguments.workers)
    remote = bool(names) and not (len(names) == 1 and hostlist.local(names[0]))
    console = output()
    settings = {"rounds": arguments.rounds, "threads": arguments.threads}
    results = Results(arguments.out, "step", settings, arguments.fresh)
    where = f"{len(names)} hosts" if remote else "loopback"
    for workload in asked:
        _measure(
            *(
                results,
                console,
                workload,
                arguments.workers,
                where,
                todo,
                arguments.rounds,
                arguments.threads,
            ),
            names=names if remote else (),
        )
    _show(results, console, [(str(workload), arguments.workers, where) for workload in asked])
    return 0


def measure_links(arguments: argparse.Namespace) -> int:
    """Every number of hosts at every rate."""
    (workload,) = _asked(arguments, several=False)
    todo = candidates(arguments.methods, arguments.rank, _doors(arguments.through))
    worlds = _numbers(arguments.workers)
    rates = arguments.rate.split(",")
    for rate in rates:
        hosts.check_rate(rate)
    _check(arguments.rounds, worlds, arguments.threads)
    _check_able()
    console = output()
    settings = {"model": str(workload), "rounds": arguments.rounds}
    if arguments.threads != 1:
        settings["threads"] = arguments.threads
    results = Results(arguments.out, "link", settings, arguments.fresh)
    for world in worlds:
        for rate in rates:
            with hosts.Hosts(world, rate) as place:
                _measure(
                    *(results, console, workload, world, rate, todo, arguments.rounds, arguments.threads),
                    place=place.place(),
                )
    _show(results, console)
    picture = arguments.out.with_suffix(".png")
    show.link_picture(results.header, list(results.records.values()), picture)
    console.print(f"Picture: {picture.resolve()}", soft_wrap=True)
    return 0


def _doors(text: str) -> tuple[str, ...]:
    doors = tuple(text.split(","))
    for door in doors:
        if door not in THROUGH:
            raise unknown("--through", door, THROUGH)
    return doors


def _asked(arguments: argparse.Namespace, several: bool = True) -> list[Workload]:
    if arguments.quick:
        return [Workload("small-shapes")]
    found = workloads(arguments.model, arguments.batch_size, arguments.image_size, arguments.length)
    if not several and len(found) > 1:
        raise ConfigError(
            f"--model {arguments.model!r}: one model at a time here; `grace bench step` takes several."
        )
    return found


def measure_traffic(arguments: argparse.Namespace) -> int:
    """One exchange in several ways between every number of hosts."""
    numel = 100_000 if arguments.quick else arguments.numel
    worlds = _numbers(arguments.workers)
    if numel < 1 or min(worlds) < 1:
        raise ConfigError("--numel and --workers must be positive.")
    _check_able()
    console = output()
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
    workload: Workload,
    world: int,
    rate: str,
    todo: list[Candidate],
    rounds: int,
    threads: int,
    place: Callable[[int], str] | None = None,
    names: Sequence[str] = (),
) -> None:
    model = str(workload)
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
            if kind == "step":
                progress.update(task, description=f"{prefix}: {value}")
                return
            where = {"model": model, "workers": world, "rate": rate, "bits": min(bits, 1e15)}
            results.add(f"{prefix}/{value['label']}", {**where, "samples": workload.samples, **value})
            progress.advance(task)
            if not console.is_terminal:  # a log shows no bar until the end
                console.print(f"{prefix}: {value['label']}, {1e3 * value['seconds']:.1f} ms", soft_wrap=True)

        if names:
            work = (asdict(workload), missing, rounds, threads)
            hostlist.run_on_hosts(names, remote_worker, world, *work, on_event=on_event, silence=SILENCE)
        else:
            run_workers(
                *(worker, world, workload, missing, rounds, threads),
                on_event=on_event,
                silence=SILENCE,
                place=place,
            )


def _show(results: Results, console: Console, wanted: Sequence[tuple[str, int, str]] | None = None) -> None:
    """Tables of the settings asked for, all of the file if none are, and one over models where there are several."""
    console.print(show.heading(results.header))
    records = list(results.records.values())
    settings = dict.fromkeys((r["model"], r["workers"], r["rate"]) for r in records)
    shown = [setting for setting in settings if wanted is None or setting in wanted]
    threads = results.header["settings"].get("threads", 1)
    for model, world, rate in shown:
        title = f"{model}, {world} workers with {threads} thread{'s' * (threads > 1)} each, {rate}"
        chosen = [r for r in records if (r["model"], r["workers"], r["rate"]) == (model, world, rate)]
        console.print(show.step_table(chosen, title))
        if line := speeds(chosen):
            console.print(line)
    if wanted is not None and len(shown) > 1:
        chosen = [r for r in records if (r["model"], r["workers"], r["rate"]) in wanted]
        console.print(grid_table(chosen))
    console.print(
        "[dim]silent: the same step under a hook that sends nothing, measured in turns with each row[/dim]"
    )
    console.print(f"Figures: {results.path.resolve()}", soft_wrap=True)


def _numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"--workers {text!r} must be numbers separated by commas, such as 2,4.") from None


def _check(rounds: int, worlds: list[int], threads: int) -> None:
    if rounds < 3 or min(worlds) < 1 or threads < 1:
        raise ConfigError("--rounds must be at least 3, --workers and --threads at least 1.")
