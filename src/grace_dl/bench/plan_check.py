"""Compares predictions with the steps that `grace bench link` measured; nothing is fitted to those measurements.

The model is profiled and codecs are measured on this machine, a probe measures its loopback. The measured step without
communication gives the time of computing in each setting; where it is longer than the profile says (workers share cores), codecs
are taken to be slower by the same factor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ..algebra.text import parse_rule
from ..errors import ConfigError
from ..plan.cluster import Cluster, Link
from ..plan.codec_timing import codec_costs
from ..plan.predict import Planned, Planner, parts_of
from ..plan.probe import probe
from ..plan.profile import Profile
from ..workers import Emit, run_workers
from .profiling import profile_workload
from .results import load
from .selection import DDP, DDP_FP16, LOCAL
from .workload import Workload


@dataclass(frozen=True)
class Comparison:
    """A measured step and its prediction, in seconds."""

    model: str
    workers: int
    rate: str
    method: str
    predicted: float
    measured: float

    @property
    def ratio(self) -> float:
        return self.predicted / self.measured


def probe_worker(rank: int, world: int, emit: Emit) -> Link:
    """Probe the loopback; the code that every worker runs."""
    torch.set_num_threads(1)
    return probe()


def compare(files: Sequence[Path], on_stage: Callable[[str], None] = lambda text: None) -> list[Comparison]:
    """A comparison for every record of the files; `on_stage` is called before each part that takes long."""
    records = [record for path in files for record in _records(path)]
    on_stage("measuring the loopback")
    loopback = run_workers(probe_worker, 2)[0]
    profiles: dict[str, Profile] = {}
    for name in dict.fromkeys(record["model"] for record in records):
        on_stage(f"measuring {name}")
        profiles[name] = profile_workload(_workload(name))
    methods = {text: _method(text) for text in dict.fromkeys(record["method"] for record in records)}
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        named = [method for method in methods.values() if method is not None]
        costs = codec_costs(
            parts_of(named), on_measure=lambda label: on_stage(f"measuring the codec of {label}")
        )
    finally:
        torch.set_num_threads(before)
    found = []
    for record in records:
        profile = profiles[record["model"]]
        slower = record["reference_seconds"] / profile.compute
        stretched = profile.with_times(
            forward=slower * profile.forward,
            backward=slower * profile.backward,
            update=slower * profile.update,
        )
        # Codecs are never faster than measured alone; a smaller factor means that the profile was disturbed.
        planner = Planner(stretched, {part: cost.scaled(max(1.0, slower)) for part, cost in costs.items()})
        link = replace(loopback, bits=min(loopback.bits, Link(record["bits"], 0.0).goodput * record["bits"]))
        step = planner.predict(methods[record["method"]], Cluster(record["workers"], 1, link))
        found.append(
            Comparison(
                record["model"],
                record["workers"],
                record["rate"],
                record["method"],
                step.seconds,
                record["seconds"],
            )
        )
    return found


def _records(path: Path) -> list[Mapping[str, Any]]:
    if not path.is_file():
        raise ConfigError(f"there is no file {path}; measure one with `grace bench link --out {path}`.")
    content = load(path)
    if content["benchmark"] != "link":
        raise ConfigError(
            f"{path} holds results of {content['benchmark']!r}; --check takes those of `grace bench link`."
        )
    return [
        r for r in content["records"] if r["method"] != DDP_FP16 and r.get("through", DDP) in (DDP, LOCAL)
    ]


def _method(text: str) -> Planned | None:
    return None if text == DDP else parse_rule(text)


def _workload(name: str) -> Workload:
    """The workload whose text is `name`: `resnet18 bs8 64px`."""
    model, *sizes = name.replace("length ", "length").split()
    given: dict[str, int] = {}
    for size in sizes:
        if size.startswith("bs"):
            given["batch_size"] = int(size[2:])
        elif size.endswith("px"):
            given["image_size"] = int(size[:-2])
        else:
            given["length"] = int(size.removeprefix("length"))
    return Workload(model, **given)
