"""`grace bench accuracy`: how well and how soon methods train a real task, at given link rates and for several seeds."""

from __future__ import annotations

import argparse
import shutil
import time
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ..console import output
from ..errors import ConfigError, DivergedError, GraceError
from ..train import TrainConfig
from ..train import main as training
from ..train.build import dataset_of
from ..train.events import Event, Started, StepDone
from ..train.overrides import Text
from ..train.world import World
from ..workers import Emit, run_workers
from . import hosts, runs, show, summary
from .contenders import Contender, contenders
from .results import Results

TASKS = {
    "cifar": ["configs/cifar/small.py"],
    "mnist": ["configs/mnist.py"],
    "synthetic": ["configs/synthetic.py"],
}
USUAL = {"task": ["cifar"], "seeds": "1,2,3"}
QUICK = {"task": ["synthetic"], "epochs": 2, "methods": ["int8", "topk:compress_ratio=0.01"], "seeds": "1"}


@dataclass(frozen=True)
class Run:
    """One training run of a study."""

    contender: Contender
    rate: str
    seed: int
    task: str
    epochs: int
    workers: int

    @property
    def facts(self) -> dict[str, Any]:
        bits = runs.UNLIMITED_BITS if self.rate == runs.LOOPBACK else hosts.check_rate(self.rate)
        return {
            "task": self.task,
            "epochs": self.epochs,
            "workers": self.workers,
            "rate": self.rate,
            "bits": min(bits, runs.UNLIMITED_BITS),
            "label": self.contender.label,
            "method": self.contender.method,
            "params": self.contender.params,
            "seed": self.seed,
        }

    @property
    def identity(self) -> str:
        return runs.identity(self.facts)


def worker(rank: int, size: int, emit: Emit, config: TrainConfig) -> str | None:
    """Train on one rank with one thread; returns why the run could not end well, if it diverged."""
    import torch

    torch.set_num_threads(1)
    try:
        training.run_local_worker(rank, size, emit, config)
    except DivergedError as error:
        return str(error)
    return None


class Study:
    """Runs of one task, kept in a result file; their folders lie beside it."""

    def __init__(self, arguments: argparse.Namespace, console: Console) -> None:
        self.console = console
        self.files = [name for task in arguments.task for name in TASKS.get(task, [task])]
        self.workers = arguments.workers
        self.overrides = dict(arguments.overrides)
        if arguments.epochs is not None:
            self.overrides["train.num_epochs"] = Text(arguments.epochs)
        self.rates = list(dict.fromkeys(arguments.rate.split(",")))
        self.chosen = contenders(arguments.methods)
        self.seeds = _numbers("--seeds", arguments.seeds)
        self.timed_epochs = arguments.timed_epochs
        self.folder = arguments.out.with_suffix("")
        self._check(arguments)
        settings = {"files": self.files, "overrides": self.overrides}
        self.results = Results(arguments.out, "accuracy", settings, arguments.fresh)
        if arguments.fresh and self.folder.is_dir():
            shutil.rmtree(self.folder)
        self.spent: dict[tuple[str, str], float] = {}

    def _check(self, arguments: argparse.Namespace) -> None:
        """Refuse what cannot work before anything is trained, and fetch data while there is a network."""
        if min(n for n in (self.workers, arguments.epochs, self.timed_epochs, 1) if n is not None) < 1:
            raise ConfigError("--workers, --epochs and --timed-epochs must be 1 or more.")
        for rate in self.rates:
            if rate != runs.LOOPBACK:
                hosts.check_rate(rate)
        reason = hosts.able()
        if reason and any(rate != runs.LOOPBACK for rate in self.rates):
            raise GraceError(f"links of a given rate cannot be made: {reason}. `--rate loopback` needs none.")
        # Building all of them finds the wrong settings of any method.
        configs = [self._config(contender, 1, self.folder) for contender in self.chosen]
        settings = configs[0].settings
        self.task, self.epochs = runs.task_of(settings.plain()), settings.train.num_epochs
        with self.console.status("loading data"):
            dataset_of(settings.dataset, World())

    def _config(self, contender: Contender, seed: int, folder: Path) -> TrainConfig:
        """The run of a method with a seed."""
        method = {path: Text(written) for path, written in contender.overrides()}
        fixed = {"seed": seed, "train.keep": 2, "train.tensorboard": False}
        return TrainConfig.from_files(
            [*self.files, *contender.files()],
            overrides={**self.overrides, **method, **fixed},
            folder=folder,
            device="cpu",
        )

    def missing(self) -> list[Run]:
        """The runs still to make: seed by seed, so that an unfinished study has something of everything."""
        found = []
        for seed in self.seeds:
            for rate in self.rates:
                for contender in self.chosen:
                    run = Run(contender, rate, seed, self.task, self.epochs, self.workers)
                    saved = self.results.records.get(run.identity)
                    if saved is None:
                        found.append(run)
                    elif saved["params"] != contender.params:
                        raise GraceError(
                            f"{self.results.path} holds {contender.label} with other settings ({saved['params']!r} instead of "
                            f"{contender.params!r}); give another --out, or --fresh to overwrite it."
                        )
        return found

    def make(self) -> None:
        """Make every missing run."""
        todo = self.missing()
        with Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[facts]}"),
            console=self.console,
            disable=not self.console.is_terminal,
        ) as progress:
            for place, run in enumerate(todo):
                left = self._left(todo[place:])
                facts = f"run {place + 1} of {len(todo)}" + (
                    f", about {_duration(left)} left" if left else ""
                )
                began = time.perf_counter()
                record = self._record(run, progress, facts)
                self.spent[run.rate, run.contender.label] = time.perf_counter() - began
                self.results.add(run.identity, record)
                # The record has all that is needed of a run that is over; its checkpoints are the bulk of it.
                shutil.rmtree(self._folder(run) / "checkpoints", ignore_errors=True)
                left = self._left(todo[place + 1 :])
                self._say(place + 1, len(todo), run, record, left)

    def _record(self, run: Run, progress: Progress, facts: str) -> dict[str, Any]:
        """The run in full; or timed only, where its training is known from another rate."""
        known = (
            self.results.records[replace(run, rate=self.rates[0]).identity]
            if run.rate != self.rates[0]
            else None
        )
        if known is None or self.timed_epochs is None or self.timed_epochs >= self.epochs:
            return self._make(run, progress, facts, {})
        if known["failed"]:
            return {**known, **run.facts}
        steps = self.timed_epochs * known["steps"] // self.epochs
        timed = self._make(run, progress, facts, {"train.num_steps": steps})
        return {**known, **run.facts, "timed_epochs": self.timed_epochs, **runs.retimed(known, timed)}

    def _folder(self, run: Run) -> Path:
        return self.folder / "".join(c if c.isalnum() or c in "._-=" else "_" for c in run.identity)

    def _make(self, run: Run, progress: Progress, facts: str, more: dict[str, Any]) -> dict[str, Any]:
        folder = self._folder(run)
        title = f"{run.contender.label}, {run.rate}, seed {run.seed}"
        task = progress.add_task(title, total=None, facts=facts)

        def on_event(rank: int, event: Event) -> None:
            if isinstance(event, Started):
                progress.update(task, completed=event.done, total=event.total)
            elif isinstance(event, StepDone):
                progress.update(task, completed=event.step)

        config = self._config(run.contender, run.seed, folder).with_overrides(more)
        links = nullcontext() if run.rate == runs.LOOPBACK else hosts.Hosts(self.workers, run.rate)
        with links as place:
            failed = run_workers(
                worker,
                self.workers,
                config,
                on_event=on_event,
                silence=training.SILENCE,
                place=None if place is None else place.place(),
            )[0]
        progress.remove_task(task)
        return {**run.facts, "timed": True, **runs.record(folder, failed)}

    def _left(self, todo: list[Run]) -> float | None:
        """Seconds that the runs will take, by those of the same kind or by the mean of all; None if none is over."""
        if not self.spent:
            return None
        mean = sum(self.spent.values()) / len(self.spent)
        return sum(self.spent.get((run.rate, run.contender.label), mean) for run in todo)

    def _say(self, done: int, total: int, run: Run, record: dict[str, Any], left: float | None) -> None:
        end = f"{100 * record['accuracy']:.2f} %" if record["accuracy"] is not None else "diverged"
        took = f" in {record['seconds']:.0f} s of training" if record["seconds"] else ""
        rest = f"; about {_duration(left)} left" if left else ""
        self.console.print(
            f"{done} of {total}: {run.contender.label}, {run.rate}, seed {run.seed}: {end}{took}{rest}",
            highlight=False,
        )


def measure_accuracy(arguments: argparse.Namespace) -> int:
    """A study, made or imported, shown as tables."""
    console = output()
    if arguments.target is not None and not 0 < arguments.target <= 100:
        raise ConfigError(f"--target {arguments.target:g} must be a percentage of right answers, such as 65.")
    if arguments.from_runs:
        results = _import(arguments, console)
    else:
        for name, value in (QUICK if arguments.quick else USUAL).items():
            if getattr(arguments, name) is None:
                setattr(arguments, name, value)
        study = Study(arguments, console)
        study.make()
        results = study.results
    records = list(results.records.values())
    console.print(show.heading(results.header))
    for (task, epochs, workers), chosen in summary.groups(records).items():
        target = summary.default_target(chosen) if arguments.target is None else arguments.target / 100
        for rate in summary.rates(chosen):
            title = f"{task}, {epochs} epochs, {workers} workers with one thread each, {rate}"
            console.print(show.accuracy_table(summary.rows(chosen, rate, target), title, target))
    console.print(
        "[dim]± is the standard deviation over seeds; seconds are those of training, without evaluations; sooner: time of "
        "float32 (bf16) to the target ÷ time of the method; MB leave a rank in the whole run[/dim]"
    )
    console.print(f"Figures: {results.path.resolve()}", soft_wrap=True)
    return 0


def _import(arguments: argparse.Namespace, console: Console) -> Results:
    out: Path = arguments.out
    found, remarks = runs.imported(arguments.from_runs)
    for remark in remarks:
        console.print(remark, highlight=False)
    if not found:
        raise GraceError("none of the runs has ended; there is nothing to write.")
    settings = {"from_runs": True}
    if out.exists() and not arguments.fresh:
        Results(out, "accuracy", settings)  # refuses to replace anything but an earlier import
    results = Results(out, "accuracy", settings, fresh=True)
    for record in found:
        results.add(runs.identity(record), record)
    return results


def _numbers(option: str, text: str) -> list[int]:
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(
            f"{option} {text!r} must be whole numbers separated by commas, such as 1,2,3."
        ) from None
    if min(found) < 0:
        raise ConfigError(f"{option} {text!r}: numbers must not be negative.")
    return list(dict.fromkeys(found))


def _duration(seconds: float) -> str:
    """Time for people.

    >>> _duration(45), _duration(600), _duration(9000)
    ('45 s', '10 min', '2 h 30 min')
    """
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
