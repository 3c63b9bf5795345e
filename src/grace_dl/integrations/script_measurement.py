"""Measures the steps of a running training script with several methods in turn.

The model's communication hook passes each bucket to the current way of exchange: plain all-reduce, nothing at all (the silent
step), or a method. Ways change after a fixed number of exchanges, which all ranks count alike. Silent steps let replicas drift
apart, so the weights of such a run are of no use.
"""

from __future__ import annotations

import atexit
import json
import os
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from ..algebra.text import parse
from ..plan.probe import probe
from ..plan.recorder import WARM_UP, Recorder
from .ddp import DDPHandle
from .script_hook import FOLDER, METHODS, PLAIN, SILENT, STEPS

SETTLING = 2
"""Steps after a change that are not counted."""
PROBE = 2**20
"""Elements of the probe's large all-reduce: 4 MB, which takes a second at most at 100 Mbit/s."""


def ways(methods: Sequence[str]) -> list[str]:
    """The ways of exchange that are measured, in order; plain DDP before and after the others, as machines slow down and speed up.

    >>> ways(["int8"])
    ['ddp', 'silent', 'int8', 'ddp']
    """
    return [PLAIN, SILENT, *methods, PLAIN]


class ScriptMeasurement:
    """One rank's measurement of one model."""

    def __init__(self, model: DistributedDataParallel, ways: Sequence[str], steps: int, folder: Path) -> None:
        self._model = model
        self._group = model.process_group
        self._rank, self._workers = torch.distributed.get_rank(), torch.distributed.get_world_size()
        self._ways = list(ways)
        self._steps = steps
        self._folder = folder
        self._cuda = next(model.parameters()).is_cuda
        self._link = probe(self._group, "cuda" if self._cuda else "cpu", large=PROBE)
        self._place = -1
        self._count = steps
        self._starts: list[float] = []
        self._handle: DDPHandle | None = None
        self._recorder: Recorder | None = None
        self._records: list[dict[str, Any]] = []
        atexit.register(self._save)
        model.register_comm_hook(self, _hook)

    @classmethod
    def start(cls, model: DistributedDataParallel) -> None:
        """Measure `model` as the environment says."""
        methods = json.loads(os.environ[METHODS])
        cls(model, ways(methods), int(os.environ[STEPS]), Path(os.environ[FOLDER]))

    def exchange(self, bucket: Any) -> torch.futures.Future[Tensor]:
        """Exchange a bucket in the current way."""
        if bucket.index() == 0:
            self._begin_step()
        way = self._ways[self._place]
        if way == PLAIN:
            return allreduce_hook(self._group, bucket)
        if way == SILENT:
            future: torch.futures.Future[Tensor] = torch.futures.Future()
            future.set_result(bucket.buffer())
            return future
        assert self._handle is not None
        return self._handle.exchange(bucket)

    def _begin_step(self) -> None:
        if self._cuda:
            torch.cuda.synchronize()
        self._starts.append(time.perf_counter())
        if self._count < self._steps:
            self._count += 1
            return
        self._conclude()
        self._place += 1
        if self._place == len(self._ways):
            self._save()
            sys.stdout.flush()
            sys.stderr.flush()
            # Every rank leaves at the same bucket. The backward pass cannot be ended by SystemExit from a hook.
            os._exit(0)
        self._count = 1
        self._starts = [time.perf_counter()]
        way = self._ways[self._place]
        if way == SILENT:
            self._recorder = Recorder(self._model, None, max(1, self._steps - WARM_UP - 1))
        elif way != PLAIN:
            self._handle = DDPHandle(self._model, parse(way), hooked=True)

    def _conclude(self) -> None:
        """Record the way that ends here."""
        if self._place < 0:
            return
        intervals = [b - a for a, b in zip(self._starts, self._starts[1:])][SETTLING:]
        if intervals:
            record: dict[str, Any] = {
                "method": self._ways[self._place],
                "seconds": statistics.median(intervals),
                "steps": len(intervals),
            }
            if self._handle is not None:
                stats = self._handle.stats()
                record["leaving_bytes"] = stats.leaving_bytes / max(1, stats.steps)
            self._records.append(record)
        if self._handle is not None:
            self._handle.close()
            self._handle = None

    def _save(self) -> None:
        atexit.unregister(self._save)
        if self._rank != 0:
            return
        if self._recorder is not None and self._recorder.profile is not None:
            self._recorder.profile.save(self._folder / "profile.json")
        content = {
            "workers": self._workers,
            "ranks_per_node": int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
            "link": [self._link.bits, self._link.latency],
            "records": self._records,
        }
        draft = self._folder / ".measured.json"
        draft.write_text(json.dumps(content))
        draft.replace(self._folder / "measured.json")


def _hook(state, bucket):  # type: ignore[no-untyped-def]  # DDP inspects annotations and does not accept strings
    return state.exchange(bucket)
