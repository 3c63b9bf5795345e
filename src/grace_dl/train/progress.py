"""The progress of a run: a bar on a terminal, a line for each evaluation in a log."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from ..console import output
from ..formatting import size
from .events import Evaluated, Event, Message, Started, StepDone, format_metrics


class ProgressDisplay:
    """Shows the events of one rank; use it in `with`, as the `report` of a trainer."""

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

    def __enter__(self) -> ProgressDisplay:
        return self

    def __exit__(self, *rest: Any) -> None:
        self._bar.stop()

    def __call__(self, event: Event) -> None:
        match event:
            case Message(text):
                self._print(text)
            case Started(done, total):
                self._bar.start()
                self._task = self._bar.add_task("training", completed=done, total=total, facts="")
            case StepDone():
                self._bar.update(
                    self._task,
                    completed=event.step,
                    description=f"epoch {event.epoch + 1}",
                    facts=(
                        f"loss {event.loss:.4f}  acc {100 * event.accuracy:.1f} %  "
                        f"{event.samples_per_second:,.0f}/s  sent {size(event.sent_bytes)}"
                    ),
                )
            case Evaluated():
                self._print(
                    f"epoch {event.epoch + 1}  step {event.step}  {format_metrics(event.metrics)}  "
                    f"sent {size(event.sent_bytes)}"
                )

    def _print(self, text: str) -> None:
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)
