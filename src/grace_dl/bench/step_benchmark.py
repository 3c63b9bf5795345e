"""`grace bench step` and `grace bench link`: training steps on local workers, remote hosts, or over links."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress

from ..algebra.text import is_rule, parse
from ..communicator.reduce_scatter import ReduceScatter
from ..console import output
from ..errors import ConfigError
from ..registry import unknown
from ..session import Session
from ..train.world import find
from ..transport.local import LocalTransport
from ..workers import run_workers
from . import plots, remote_hosts, tables, virtual_hosts
from .results import Results, label_of
from .selection import ALL, BASELINES, FSDP, HSDP, LOCAL, OPTIMIZER, select
from .step_worker import THROUGH, Candidate, remote_worker, worker
from .workload import Workload

METHODS = (
    "none",
    "fp16",
    "int8",
    "int4",
    "efsignsgd",
    "eden",
    "randomk:0.01",
    "topk:0.01",
    "topk:0.001",
    "dgc:0.001",
    "acpsgd:4",
    "powersgd:4",
)
"""The default methods: about one of each family."""

SILENCE = 1800.0
"""Seconds a step may take: large batches on a slow machine take minutes."""


@dataclass(frozen=True)
class StepPlan:
    """What is measured in every setting, and how."""

    candidates: list[Candidate]
    rounds: int = 15
    threads: int = 1

    def __post_init__(self) -> None:
        if self.rounds < 3 or self.threads < 1:
            raise ConfigError("--rounds must be at least 3, --threads at least 1.")


def candidates(methods: Sequence[str] | None, through: Sequence[str] = THROUGH[:1]) -> list[Candidate]:
    """Methods and baselines as named on a command line, attached to each of `through`; local steps once.

    >>> candidates(["ssgd", "acpsgd:rank=8"], ["ddp", "optimizer"])[1:]
    [Candidate(method='acpsgd:8', through='ddp'), Candidate(method='acpsgd:8', through='optimizer')]
    """
    for target in through:
        if target not in THROUGH:
            raise unknown("--through", target, THROUGH)
    found = [Candidate(FSDP, target) for target in through if target in (FSDP, HSDP)]
    for method in select(methods, default=METHODS, beside=BASELINES, rules=True):
        if is_rule(method):
            found.append(Candidate(method, LOCAL))
            continue
        for target in THROUGH[:1] if method in BASELINES else through:
            if target == FSDP:
                try:
                    Session(parse(method), LocalTransport(), ReduceScatter)
                except ConfigError:
                    if methods is not None and ALL not in methods:
                        raise
                    continue  # a default that sharded models do not support
            found.append(Candidate(method, target))
    return found


def _check(workloads: Sequence[Workload], plan: StepPlan, workers: Sequence[int]) -> None:
    """Raise before anything is measured if a candidate cannot be."""
    targets = {candidate.through for candidate in plan.candidates}
    passes = max(workload.accumulate for workload in workloads)
    if passes > 1 and OPTIMIZER in targets:
        raise ConfigError(
            f"--accumulate {passes} is not measured through an optimizer; pass --through ddp, fsdp or hsdp."
        )
    unpaired = [count for count in workers if count < 4 or count % 2]
    if HSDP in targets and unpaired:
        raise ConfigError(
            f"--through hsdp needs two or more pairs of workers, not {unpaired[0]} workers; pass --workers 4."
        )


def measure_steps(
    workloads: Sequence[Workload],
    plan: StepPlan,
    out: Path,
    *,
    workers: Sequence[int] = (2,),
    hosts: str = "",
    fresh: bool = False,
) -> None:
    """Measure models on local workers, or on those of a list of hosts; one file holds them all."""
    launcher = find().launcher
    if launcher != "none":
        raise ConfigError(
            f"`grace bench step` starts its workers itself, but runs under {launcher}; call it on its own, with "
            "--workers and --hosts."
        )
    _check(workloads, plan, workers)
    for count in workers:
        names = remote_hosts.parse(hosts, count)
    remote = bool(names) and not (len(names) == 1 and remote_hosts.local(names[0]))
    results = Results(out, "step", {"rounds": plan.rounds, "threads": plan.threads}, fresh)
    where = f"{len(names)} hosts" if remote else "loopback"
    console = output()
    settings = [_Setting(workload, count, where) for count in workers for workload in workloads]
    for setting in settings:
        _measure(results, console, setting, plan, names=names if remote else ())
    _show(results, console, [(str(s.workload), s.workers, where) for s in settings])


def measure_links(
    workloads: Sequence[Workload],
    plan: StepPlan,
    out: Path,
    *,
    workers: Sequence[int] = (2,),
    rates: Sequence[str] = ("unlimited",),
    per_host: int = 1,
    fresh: bool = False,
) -> None:
    """Measure every model on every number of workers at every link rate, with `per_host` workers on each host."""
    _check(workloads, plan, workers)
    virtual_hosts.check_workers(workers, per_host)
    if virtual_hosts.with_links(rates):
        virtual_hosts.check_able("`--rate loopback` needs none")
    models = ", ".join(map(str, workloads))
    settings: dict[str, Any] = {"model": models, "rounds": plan.rounds}
    if plan.threads != 1:
        settings["threads"] = plan.threads
    if per_host != 1:
        settings["per_host"] = per_host
    results = Results(out, "link", settings, fresh)
    console = output()
    for setting in (_Setting(w, count, rate) for w in workloads for count in workers for rate in rates):
        with virtual_hosts.network(setting.workers // per_host, setting.rate, per_host) as place:
            _measure(results, console, setting, plan, place=place)
    _show(results, console)
    plots.show(console, out, plots.plot_links, results)


@dataclass(frozen=True)
class _Setting:
    """A model on a number of workers connected by links of a rate."""

    workload: Workload
    workers: int
    rate: str

    def __str__(self) -> str:
        return f"{self.workload}/{self.workers}/{self.rate}"

    @property
    def facts(self) -> dict[str, Any]:
        return {
            "model": str(self.workload),
            "workers": self.workers,
            "rate": self.rate,
            "bits": virtual_hosts.recorded_bits(self.rate),
            "samples": self.workload.samples,
        }


def _measure(
    results: Results,
    console: Console,
    setting: _Setting,
    plan: StepPlan,
    place: Callable[[int], str] | None = None,
    names: Sequence[str] = (),
) -> None:
    """Measure the candidates that are missing in the file."""
    missing = [c for c in plan.candidates if f"{setting}/{label_of(c._asdict())}" not in results]
    if not missing:
        return
    with Progress(console=console) as progress:
        task = progress.add_task(str(setting), total=len(missing))

        def on_event(rank: int, event: tuple[str, Any]) -> None:
            if rank != 0:
                return
            kind, value = event
            if kind == "step":
                progress.update(task, description=f"{setting}: {value}")
                return
            label = label_of(value)
            results.add(f"{setting}/{label}", {**setting.facts, **value})
            progress.advance(task)
            if not console.is_terminal:  # a log shows no bar until the end
                console.print(f"{setting}: {label}, {1e3 * value['seconds']:.1f} ms", soft_wrap=True)

        measured = (missing, plan.rounds, plan.threads, place is not None)
        if names:
            work = (asdict(setting.workload), *measured)
            remote_hosts.run_on_hosts(
                names, remote_worker, setting.workers, *work, on_event=on_event, silence=SILENCE
            )
        else:
            run_workers(
                *(worker, setting.workers, setting.workload, *measured),
                on_event=on_event,
                silence=SILENCE,
                place=place,
            )


def _show(results: Results, console: Console, wanted: Sequence[tuple[str, int, str]] | None = None) -> None:
    """Print the tables of the settings asked for, or of the whole file, and one over models if there are several."""
    console.print(tables.heading(results.header))
    found: dict[tuple[str, int, str], list[dict[str, Any]]] = {}
    for r in results.records.values():
        setting = r["model"], r["workers"], r["rate"]
        if wanted is None or setting in wanted:
            found.setdefault(setting, []).append(r)
    threads = results.header["settings"].get("threads", 1)
    for (model, workers, rate), records in found.items():
        title = f"{model}, {workers} workers with {threads} thread{'s' * (threads > 1)} each, {rate}"
        console.print(tables.step_table(records, title))
        if line := tables.throughput(records):
            console.print(line)
    if wanted is not None and len(found) > 1:
        console.print(tables.grid_table([r for records in found.values() for r in records]))
    console.print(
        "[dim]silent: the same step without communication, measured alternately with each row[/dim]"
    )
    console.print(f"Results: {results.path.resolve()}", soft_wrap=True)
