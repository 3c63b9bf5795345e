"""Compares predictions with the steps that `grace bench link` measured; nothing is fitted to those measurements.

The model is profiled and codecs are measured on this machine. Rate and latency of a link are those that `grace bench link` found by a
probe before it measured steps. The measured step without communication gives the time of computing in each setting; where it is longer
than the profile says (workers share cores), codecs are taken to be slower by the same factor. Workers that need all cores also process
messages on them: a byte costs as much computing as it takes on a link without a limit.
"""

from __future__ import annotations

import os
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
from .virtual_hosts import UNLIMITED_BITS
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


class Links:
    """The links of records: what a probe found when they were measured, or this machine's loopback and the nominal rate."""

    def __init__(self, records: Sequence[Mapping[str, Any]], threads: int = 1) -> None:
        self._threads = threads
        self._unlimited: dict[int, Link] = {}
        for record in records:
            if record["bits"] >= UNLIMITED_BITS and "link" in record:
                self._unlimited.setdefault(record["workers"], _probed(record))

    def _fastest(self, workers: int) -> Link:
        if workers not in self._unlimited:
            self._unlimited[workers] = run_workers(probe_worker, workers)[0]
        return self._unlimited[workers]

    def of(self, record: Mapping[str, Any]) -> Link:
        workers, fastest = record["workers"], self._fastest(record["workers"])
        if "link" in record:
            link = _probed(record)
        else:
            link = replace(
                fastest, bits=min(fastest.bits, Link(record["bits"], 0.0).goodput * record["bits"])
            )
        spare = workers * self._threads < (os.cpu_count() or 1)
        return replace(link, processing=0.0 if spare else fastest.seconds_per_byte)


def _probed(record: Mapping[str, Any]) -> Link:
    return Link(record["link"]["bits"], record["link"]["latency"], goodput=1.0)


def probe_worker(rank: int, world: int, emit: Emit) -> Link:
    """Probe the loopback; the code that every worker runs."""
    torch.set_num_threads(1)
    return probe()


def compare(
    files: Sequence[Path], on_stage: Callable[[str], None] = lambda text: None, *, fresh: bool = False
) -> list[Comparison]:
    """A comparison for every record of the files; `on_stage` is called before each part that takes long.

    `fresh`: measure codecs again instead of using cached costs.
    """
    records = [record for path in files for record in _records(path)]
    on_stage("measuring the loopback")
    links = list(map(Links(records).of, records))
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
            parts_of(named),
            fresh=fresh,
            on_measure=lambda label: on_stage(f"measuring the codec of {label}"),
        )
    finally:
        torch.set_num_threads(before)
    found = []
    for record, link in zip(records, links):
        profile = profiles[record["model"]]
        slower = record["reference_seconds"] / profile.compute
        stretched = profile.with_times(
            forward=slower * profile.forward,
            backward=slower * profile.backward,
            update=slower * profile.update,
        )
        # Codecs are never faster than measured alone; a smaller factor means that the profile was disturbed.
        planner = Planner(stretched, {part: cost.scaled(max(1.0, slower)) for part, cost in costs.items()})
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
    for name, what in (("per_host", "workers on a host"), ("threads", "threads a worker")):
        if (count := content["settings"].get(name, 1)) != 1:
            raise ConfigError(
                f"{path} was measured with {count} {what}; --check predicts one. Measure anew without --{name.replace('_', '-')}."
            )
    found = [
        record
        for record in content["records"]
        # What `auto` chose may be a mixture, and PyTorch's hook has no codec of ours.
        if record["method"] != DDP_FP16
        and "choice" not in record
        and record.get("through", DDP) in (DDP, LOCAL)
    ]
    if not found:
        raise ConfigError(
            f"{path} has no step that can be predicted; measure ddp or methods on DDP models, as in "
            "`grace bench link --methods ddp int8`."
        )
    return found


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
