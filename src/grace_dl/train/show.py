"""The progress of a run on a terminal, or a line an epoch in a log."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ..console import output
from ..formatting import size


class Show:
    """Takes the events of rank 0: ("start", title, done, total), ("step", {...}), ("epoch", {...}), ("say", text)."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or output()
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[facts]}"),
            TimeRemainingColumn(elapsed_when_finished=True),
            console=self.console,
            disable=not self.console.is_terminal,
        )
        self._task: Any = None

    def __enter__(self) -> Show:
        return self

    def __exit__(self, *rest: Any) -> None:
        self._bar.stop()

    def __call__(self, event: tuple[Any, ...]) -> None:
        kind, *rest = event
        if kind == "start":
            title, done, total = rest
            self._bar.start()
            self._task = self._bar.add_task(title, completed=done, total=total, facts="")
        elif kind == "step":
            (facts,) = rest
            self._bar.update(
                self._task,
                completed=facts["step"],
                description=f"epoch {facts['epoch'] + 1}",
                facts=(
                    f"loss {facts['loss']:.4f}  acc {100 * facts['accuracy']:.1f} %  "
                    f"{facts['speed']:,.0f}/s  sent {size(facts['bytes'])}"
                ),
            )
        elif kind == "epoch":
            (facts,) = rest
            scores = "  ".join(f"{name} {value:.4f}" for name, value in facts["scores"].items())
            self.say(
                f"epoch {facts['epoch'] + 1}  step {facts['step']}  {scores}  sent {size(facts['bytes'])}"
            )
        else:
            self.say(rest[0])

    def say(self, text: str) -> None:
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)
