"""Failing ranks where waiting neither blocks nor raises, as with NCCL: Gloo's collectives stand for those of a device."""

from __future__ import annotations

import datetime
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import HashStore

import grace_dl as grace
from grace_dl.errors import PeerError
from grace_dl.transport import device_watch
from grace_dl.transport.base import Handle
from grace_dl.transport.device_watch import DeviceWatch
from grace_dl.transport.torch_dist import TorchHandle, TorchTransport


class NeverBlocks:
    """The work of a collective that only the device waits for."""

    def __init__(self, work: Any) -> None:
        self._work = work
        self.is_completed = work.is_completed

    def wait(self) -> None:
        pass


class OnDevice(TorchTransport):
    """Its collectives count as those of a device. A rank may fail when it issues one."""

    fails = False

    def __init__(self) -> None:
        super().__init__()
        self.one_order = True

    def _start(self, what: str, verb: Any, channel: int, *arguments: Any) -> Handle:
        if self.fails:
            raise RuntimeError("out of memory")
        handle = super()._start(what, verb, channel, *arguments)
        assert isinstance(handle, TorchHandle)
        handle._work, handle._watch = NeverBlocks(handle._work), self._watch
        handle.step = self._watch.step
        return handle


def failing(rank: int, world: int, how: str) -> tuple[float, str]:
    """A step that did well, and one in which rank 1 fails: seconds, and the error of the other ranks."""
    transport = OnDevice()
    # Its host reads what the first round has brought, and so waits for it.
    handle = grace.manual("threshold:0.5,dense_below=0", transport=transport)
    assert handle.step(torch.ones(500), "w").isfinite().all()
    if rank == 1:
        transport.fails = how == "raises"
        if how == "sleeps":
            time.sleep(9)
            dist.destroy_process_group()
            return 0.0, ""
    start = time.monotonic()
    with pytest.raises(RuntimeError if transport.fails else PeerError) as caught:
        handle.step(torch.ones(500), "w")
    seconds = time.monotonic() - start
    if rank == 1:
        time.sleep(3)  # its end would tell the others as well
    handle.close()
    assert rank != 1 or not transport._watch._store.check([transport._watch._key])
    dist.destroy_process_group()  # it cannot be used any more
    return seconds, str(caught.value)


def test_a_rank_that_raises_is_seen_by_the_others(launch: Any) -> None:
    for rank, (seconds, text) in enumerate(launch(failing, 3, "raises", timeout=40, group_timeout=20)):
        assert ("rank 1 has left the step (RuntimeError: out of memory)" in text) == (rank != 1), text
        assert seconds < 10


def test_a_rank_that_is_stuck_is_reported_before_the_watchdog_of_torch_ends_the_process(launch: Any) -> None:
    for rank, (seconds, text) in enumerate(launch(failing, 3, "sleeps", timeout=60, group_timeout=6)):
        assert rank == 1 or ("did not finish in 5.4 s" in text and seconds > 5.3), (seconds, text)


class Collective:
    """One that is never complete."""

    what = "all-reduce"
    step = 4

    def __init__(self) -> None:
        self.issued = time.monotonic()

    def done(self) -> bool:
        return False


def watch_of(rank: int, store: Any, limit: float = 0.2) -> DeviceWatch:
    watch = DeviceWatch(rank, lambda: datetime.timedelta(seconds=limit))
    watch.connect(store, "label")
    return watch


def test_the_note_of_an_earlier_step_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_watch, "LOOK_SECONDS", 0.0)
    store = HashStore()
    failed, waiting = watch_of(0, store), watch_of(1, store)
    for step, expected in (
        (3, "did not finish in"),
        (4, "rank 0 has left the step"),
        (5, "rank 0 has left the step"),
    ):
        failed.step = step
        failed.leave("no space left on the disk")
        waiting.add(Collective())
        with pytest.raises(PeerError, match=expected):
            waiting.complete()
        with pytest.raises(PeerError, match=f"{expected}.*start the ranks again"):
            waiting.begin_step()
    assert store.num_keys() == 1
    failed.close()
    assert store.num_keys() == 0


def test_a_store_that_has_ended_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    class Ended:
        def compare_set(self, *_: str) -> bytes:
            raise RuntimeError("connection reset by peer")

    monkeypatch.setattr(device_watch, "LOOK_SECONDS", 0.0)
    watch = watch_of(1, Ended(), limit=60)
    watch.add(Collective())
    with pytest.raises(PeerError, match="the store does not answer: connection reset by peer"):
        watch.complete()
