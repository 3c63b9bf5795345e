"""`grace bench accuracy`: final accuracy and time to accuracy of methods on a real task, over link rates and seeds."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ..console import output
from ..errors import ConfigError, DivergedError, GraceError
from ..formatting import duration
from ..train import TrainConfig
from ..train import main as training
from ..train.build import dataset_of
from ..train.events import Event, Started, StepDone
from ..train.world import World
from ..workers import Emit, run_workers
from . import run_records, summary, tables, virtual_hosts
from .results import Results
from .selection import DDP
from .target import Target, field_of
from .training_methods import files_and_overrides

TASKS = {
    "cifar": ["configs/cifar/small.py"],
    "mnist": ["configs/mnist.py"],
    "lm": ["configs/lm/transformer.py", "configs/lm/adamw.py"],
    "synthetic": ["configs/synthetic.py"],
}
METHODS = (
    "int8",
    "topk:0.01",
    # Four warm-up stages take the first epoch of CIFAR-10 on two workers.
    "dgc:0.01,warmup_stages=4,warmup_steps=100",
    "powersgd:4",
    "efsignsgd",
)
"""The default methods: one of each family that works with the learning rate of plain SGD."""

BESIDE = (DDP, summary.BF16)
"""The baselines."""


@dataclass(frozen=True)
class StudyPlan:
    """What a study trains: every method with every seed at every link rate."""

    methods: Sequence[str]
    """In the form that `select` returns."""
    task: Sequence[str] = ("cifar",)
    """Names of `TASKS`, or config files."""
    rates: Sequence[str] = (virtual_hosts.LOOPBACK,)
    seeds: Sequence[int] = (1, 2, 3)
    workers: Sequence[int] = (2,)
    epochs: int | None = None
    """None: those of the config file."""
    timed_epochs: float | None = None
    """The number of epochs to train and time at all rates but the first; may be less than one."""
    target: float | None = None
    """As `show_study` takes it."""
    overrides: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if min(n for n in (*self.workers, self.epochs, 1) if n is not None) < 1:
            raise ConfigError("--workers and --epochs must be 1 or more.")
        if self.timed_epochs is not None and self.timed_epochs <= 0:
            raise ConfigError(f"--timed-epochs {self.timed_epochs:g} must be above 0, such as 2 or 0.5.")
        if virtual_hosts.with_links(self.rates):
            virtual_hosts.check_able("`--rate loopback` needs none")


@dataclass(frozen=True)
class Run:
    """One training run of a study."""

    method: str
    rate: str
    seed: int
    task: str
    epochs: int
    workers: int

    @property
    def facts(self) -> dict[str, Any]:
        return {
            "task": self.task,
            "epochs": self.epochs,
            "workers": self.workers,
            "rate": self.rate,
            "bits": virtual_hosts.recorded_bits(self.rate),
            "method": self.method,
            "seed": self.seed,
        }

    @property
    def identity(self) -> str:
        return run_records.identity(self.facts)


def worker(rank: int, size: int, emit: Emit, config: TrainConfig) -> str | None:
    """Train on one rank with one thread; returns the reason if the run diverged."""
    import torch

    torch.set_num_threads(1)
    try:
        training.run_local_worker(rank, size, emit, config)
    except DivergedError as error:
        return str(error)
    return None


class Study:
    """Runs of one task, recorded in a result file; their folders are next to it."""

    def __init__(self, plan: StudyPlan, out: Path, console: Console, fresh: bool = False) -> None:
        self.plan, self.console = plan, console
        self.files = [name for task in plan.task for name in TASKS.get(task, [task])]
        self.overrides = dict(plan.overrides)
        if plan.epochs is not None:
            self.overrides["train.num_epochs"] = plan.epochs
        self.folder = out.with_suffix("")
        self._check()
        settings = {"files": self.files, "overrides": self.overrides}
        self.results = Results(out, "accuracy", settings, fresh)
        if fresh and self.folder.is_dir():
            shutil.rmtree(self.folder)
        self.spent: dict[tuple[str, str], float] = {}

    def _check(self) -> None:
        """Reject invalid settings before training, and fetch the data while there is a network."""
        # Building all of them detects invalid settings of any method.
        configs = [self._config(method, 1, self.folder) for method in self.plan.methods]
        settings = configs[0].settings
        if self.plan.target is not None:
            Target.asked(self.plan.target, run_records.judged_by(settings.train.metric))
        self.task, self.epochs = run_records.task_of(settings.plain()), settings.train.num_epochs
        with self.console.status("loading data"):
            dataset_of(settings.dataset, World())

    def _config(self, method: str, seed: int, folder: Path) -> TrainConfig:
        """The run of a method with a seed."""
        files, chosen = files_and_overrides(method)
        fixed = {"seed": seed, "train.keep": 2, "train.tensorboard": False}
        return TrainConfig.from_files(
            [*self.files, *files],
            overrides={**self.overrides, **chosen, **fixed},
            folder=folder,
            device="cpu",
        )

    def missing(self) -> list[Run]:
        """The remaining runs, seed by seed, so that an unfinished study covers all methods."""
        plan = self.plan
        runs = [
            Run(method, rate, seed, self.task, self.epochs, workers)
            for workers in plan.workers
            for seed in plan.seeds
            for rate in plan.rates
            for method in plan.methods
        ]
        return [run for run in runs if run.identity not in self.results]

    def make(self) -> None:
        """Make every missing run."""
        training.quiet_workers()
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
                facts = f"run {place + 1} of {len(todo)}" + (f", about {duration(left)} left" if left else "")
                began = time.perf_counter()
                record = self._record(run, progress, facts)
                self.spent[run.rate, run.method] = time.perf_counter() - began
                self.results.add(run.identity, record)
                # The record has everything that is needed of a finished run; its checkpoints take the most space.
                shutil.rmtree(self._folder(run) / "checkpoints", ignore_errors=True)
                left = self._left(todo[place + 1 :])
                self._say(place + 1, len(todo), run, record, left)

    def _record(self, run: Run, progress: Progress, facts: str) -> dict[str, Any]:
        """The full run, or only timed epochs if its training is known from another rate."""
        first = replace(run, rate=self.plan.rates[0])
        known = self.results.records[first.identity] if run != first else None
        if known is None or self.plan.timed_epochs is None or self.plan.timed_epochs >= self.epochs:
            return self._make(run, progress, facts, {})
        if known["failed"]:
            return {**known, **run.facts}
        steps = max(2, int(self.plan.timed_epochs * known["steps"] / self.epochs))
        timed = self._make(run, progress, facts, {"train.num_steps": steps})
        return {
            **known,
            **run.facts,
            "timed_epochs": self.plan.timed_epochs,
            **run_records.retimed(
                known,
                run_records.logged(self._folder(first)),
                timed,
                run_records.logged(self._folder(run)),
            ),
        }

    def _folder(self, run: Run) -> Path:
        return self.folder / "".join(c if c.isalnum() or c in "._-=" else "_" for c in run.identity)

    def _make(self, run: Run, progress: Progress, facts: str, more: dict[str, Any]) -> dict[str, Any]:
        folder = self._folder(run)
        title = f"{run.method}, {run.rate}, seed {run.seed}"
        task = progress.add_task(title, total=None, facts=facts)

        def on_event(rank: int, event: Event) -> None:
            if isinstance(event, Started):
                progress.update(task, completed=event.done, total=event.total)
            elif isinstance(event, StepDone):
                progress.update(task, completed=event.step)

        config = self._config(run.method, run.seed, folder).with_overrides(more)
        with virtual_hosts.network(run.workers, run.rate) as place:
            failed = run_workers(
                worker, run.workers, config, on_event=on_event, silence=training.SILENCE, place=place
            )[0]
        progress.remove_task(task)
        return {**run.facts, "timed": True, **run_records.record(folder, failed)}

    def _left(self, todo: list[Run]) -> float | None:
        """Estimated seconds of the runs, from runs of the same kind or the mean of all; None if none is finished."""
        if not self.spent:
            return None
        mean = sum(self.spent.values()) / len(self.spent)
        return sum(self.spent.get((run.rate, run.method), mean) for run in todo)

    def _say(self, done: int, total: int, run: Run, record: dict[str, Any], left: float | None) -> None:
        end = f"{100 * record['accuracy']:.2f} %" if record["accuracy"] is not None else "diverged"
        took = f" in {record['seconds']:.0f} s of training" if record["seconds"] else ""
        rest = f"; about {duration(left)} left" if left else ""
        self.console.print(
            f"{done} of {total}: {run.method}, {run.rate}, seed {run.seed}: {end}{took}{rest}",
            highlight=False,
        )


def make_study(plan: StudyPlan, out: Path, *, fresh: bool = False) -> Results:
    """Run what is missing in the result file."""
    study = Study(plan, out, output(), fresh)
    study.make()
    return study.results


def import_runs(
    folders: Sequence[Path], out: Path, *, fresh: bool = False, target: float | None = None
) -> Results:
    """Import the curves of `grace train` runs into a result file; `target` is only checked."""
    found, remarks = run_records.imported(folders)
    for remark in remarks:
        output().print(remark, highlight=False)
    if not found:
        raise GraceError("none of the runs has ended; there is nothing to write.")
    if target is not None:
        for record in found:
            Target.asked(target, field_of(record))
    settings = {"from_runs": True}
    if out.exists() and not fresh:
        Results(out, "accuracy", settings)  # only an earlier import may exist
    results = Results(out, "accuracy", settings, fresh=True)
    for record in found:
        results.add(run_records.identity(record), record)
    return results


def show_study(results: Results, target: float | None = None) -> None:
    """Print the tables of a study. `target`: the percentage of correct answers to reach, or the loss where runs are judged by it."""
    console = output()
    records = list(results.records.values())
    console.print(tables.heading(results.header))
    for (task, epochs, workers), chosen in summary.groups(records).items():
        aim = Target.default(chosen) if target is None else Target.asked(target, field_of(chosen[0]))
        for rate in summary.rates(chosen):
            title = f"{task}, {epochs} epochs, {workers} workers with one thread each, {rate}"
            console.print(tables.accuracy_table(summary.rows(chosen, rate, aim), title, aim))
    console.print(
        "[dim]±: standard deviation over seeds; s: seconds of training, without evaluations; speed-up: time that ddp (bf16) "
        "takes to the target ÷ time of the method; sent MB: what leaves a rank in the whole run[/dim]"
    )
    console.print(f"Results: {results.path.resolve()}", soft_wrap=True)
