"""`grace plan -- COMMAND`: measures an unchanged training script with several methods in turn."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..errors import ConfigError, GraceError
from ..formatting import milliseconds, rate, size
from ..integrations.script_hook import FOLDER, METHODS, PLAIN, SILENT, SITECUSTOMIZE, STEPS
from ..integrations.script_measurement import ways
from ..plan.cluster import Cluster, Link
from ..plan.profile import Profile

DIFFERENCE = 0.25
"""Share by which the computing time of a profile may differ from the measured step without communication."""


@dataclass(frozen=True)
class ScriptRun:
    """What was measured in a script."""

    profile: Profile | None
    cluster: Cluster
    """The ranks of the run, with the link that a probe measured."""
    seconds: dict[str, float]
    """Median step time by method; `ddp` is the mean of its two turns, before and after the others."""
    leaving: dict[str, float]
    missing: tuple[str, ...] = ()
    """Methods, and the second turn of plain DDP, that training did not reach."""
    code: int = 0
    """Exit code of the command."""

    @property
    def failure(self) -> str | None:
        """Why methods are missing, if the command failed."""
        return failure(self.code, self.missing)


def failure(code: int, missing: Sequence[str]) -> str | None:
    """What went wrong in a command that ended with an exit code, before some ways of exchange were measured.

    >>> failure(1, ["int8", "ddp"])
    'the command ended with exit code 1 while measuring int8; its messages above say why.'
    """
    if not code or not missing:
        return None
    return f"the command ended with exit code {code} while measuring {_label(missing[0])}; its messages above say why."


def run_script(command: Sequence[str], methods: Sequence[str], steps: int) -> ScriptRun:
    """Run a command whose processes measure themselves, and read what they wrote."""
    if shutil.which(command[0]) is None:
        raise ConfigError(
            f"there is no program {command[0]!r} in PATH; write the command that starts training after --, such as "
            f"`-- {sys.executable} -m torch.distributed.run --nproc-per-node 2 my_train.py`."
        )
    with tempfile.TemporaryDirectory(prefix="grace-plan-") as name:
        folder = Path(name)
        (folder / "path").mkdir()
        (folder / "path" / "sitecustomize.py").write_text(SITECUSTOMIZE)
        searched = [str(folder / "path"), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(searched),
            FOLDER: str(folder),
            METHODS: json.dumps(methods),
            STEPS: str(steps),
        }
        code = subprocess.run(command, env=environment, check=False).returncode
        try:
            content = json.loads((folder / "measured.json").read_text())
        except FileNotFoundError:
            reason = (
                f"it ended with exit code {code}; its own messages above say why. Repair it and run this again"
                if code
                else "it made no DistributedDataParallel model, or rank 0 runs on another machine; give a script that "
                "trains with DDP, and run this where rank 0 runs"
            )
            raise GraceError(f"nothing was measured in `{' '.join(command)}`: {reason}.") from None
        recorded = folder / "profile.json"
        missing = tuple(ways(methods)[len(content["records"]) :])
        return _read(content, Profile.load(recorded) if recorded.exists() else None, missing, code)


def _read(content: dict[str, Any], profile: Profile | None, missing: tuple[str, ...], code: int) -> ScriptRun:
    turns: dict[str, list[float]] = {}
    leaving: dict[str, float] = {}
    for record in content["records"]:
        turns.setdefault(record["method"], []).append(record["seconds"])
        leaving[record["method"]] = record.get("leaving_bytes", 0.0)
    if PLAIN not in turns or SILENT not in turns:
        raise GraceError(
            failure(code, missing)
            or "training ended before plain DDP and a step without communication were measured; let it run longer."
        )
    bits, latency = content["link"]
    link = Link(bits, latency, goodput=1.0)
    workers, ranks = content["workers"], content["ranks_per_node"]
    # On a single machine every rank stands for a host, so that predictions for other links make sense.
    nodes, ranks = (workers // ranks, ranks) if workers > ranks else (workers, 1)
    cluster = Cluster(nodes, ranks, link, link)
    means = {method: sum(times) / len(times) for method, times in turns.items()}
    return ScriptRun(profile, cluster, means, leaving, missing, code)


def show_script(console: Console, run: ScriptRun) -> None:
    """The measured steps and the verdict."""
    plain, silent = run.seconds[PLAIN], run.seconds[SILENT]
    link = run.cluster.outer
    console.print(
        f"Measured on {run.cluster.workers} workers; link: {rate(link.bits)}, {1e6 * link.latency:.0f} µs a message, as an all-reduce sees it"
    )
    table = Table(title="Measured training step")
    table.add_column("method")
    for column in ("step", "over plain DDP", "over no communication", "leaves a rank"):
        table.add_column(column, justify="right")
    for method, seconds in sorted(run.seconds.items(), key=lambda item: item[1]):
        table.add_row(
            "no communication" if method == SILENT else method,
            milliseconds(seconds),
            f"{seconds / plain:.2f} ×",
            f"{seconds / silent:.2f} ×",
            size(run.leaving[method]) if run.leaving[method] else "",
            style="bold" if method == PLAIN else "",
        )
    console.print(table)
    if run.failure:
        return  # a method that failed could be the best: no advice
    if run.missing:
        left = [method for method in run.missing if method != PLAIN]
        what = f": not {', '.join(left)}" if left else "; plain DDP was measured once, not twice"
        console.print(
            Text(
                f"Training ended before every method was measured{what}. Let it run longer.", style="yellow"
            ),
            soft_wrap=True,
        )
        if len(run.seconds) == 2:
            return
        console.print("Of what was measured:")
    console.print(Text(script_verdict(run.seconds), style="bold"))


def warning_of_times(run: ScriptRun) -> str | None:
    """What to say if the computing time of the profile is not that of the measured step without communication."""
    if run.profile is None:
        return None
    computed, silent = run.profile.compute, run.seconds[SILENT]
    if abs(computed / silent - 1) <= DIFFERENCE:
        return None
    return (
        f"Warning: forward, backward and update take {milliseconds(computed)} in the profile, a step without communication "
        f"{milliseconds(silent)}. Something else takes time in a step (loading data, say), or the script exchanges gradients "
        "several times an update. Trust the measured steps above; the predictions below leave the difference out."
    )


def _label(way: str) -> str:
    return {PLAIN: "plain DDP", SILENT: "a step without communication"}.get(way, way)


def script_verdict(seconds: dict[str, float]) -> str:
    """What to use for this script on these machines.

    >>> script_verdict({"ddp": 2.0, "silent": 1.0, "int8": 1.25})
    'Use int8: a step takes 0.62 × as long as with plain DDP. At best 0.50 × is possible: communication takes 50% of a step.'
    >>> script_verdict({"ddp": 1.0, "silent": 0.99, "int8": 1.1})
    'Use plain DDP: communication takes 1% of a step, and no method is faster.'
    """
    plain, silent = seconds[PLAIN], seconds[SILENT]
    share = max(0.0, 1 - silent / plain)
    methods = {method: took for method, took in seconds.items() if method not in (PLAIN, SILENT)}
    best = min(methods, key=lambda method: methods[method], default=None)
    if best is None or methods[best] >= plain:
        return f"Use plain DDP: communication takes {share:.0%} of a step, and no method is faster."
    gain = methods[best] / plain
    return (
        f"Use {best}: a step takes {gain:.2f} × as long as with plain DDP. At best {silent / plain:.2f} × is possible: "
        f"communication takes {share:.0%} of a step."
    )
