"""Steps on the pretended device in which a rank fails; runs in a process of its own (see test_failing.py)."""

from __future__ import annotations

import datetime
import time
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from contract.cases import cases_of
from ghost.device import Device, busy, down
from ghost.steps import Job, Shape, bucket_of, gradients
from grace_dl.errors import PeerError

TWO_BUCKETS = Shape(2, 2, 1, 1)


def _jobs(name: str) -> list[Job]:
    """One job for each communicator of a method, after a step that did well."""
    cases = {case.communicator: case for case in reversed(cases_of(name))}
    jobs = [Job(case, TWO_BUCKETS) for case in cases.values()]
    for job in jobs:
        job.step(0)
    return jobs


def _owed(job: Job, rank: int) -> list[Tensor | None]:
    with Device():
        found = [job.handles[rank].session.residual(f"bucket{number}.0") for number in range(2)]
    return [None if owed is None else down(owed).clone() for owed in found]


def _attempt(job: Job, rank: int, timeout: float) -> tuple[Exception | None, float]:
    """One more step of a rank: the error that it ends with, and the seconds it took."""
    network = job.networks[rank]
    network.timeout = datetime.timedelta(seconds=timeout)
    buckets = [
        bucket_of(n, grads, True) for n, grads in enumerate(gradients(TWO_BUCKETS, 1, torch.float32)[rank])
    ]
    start, caught = time.monotonic(), None
    with Device():
        try:
            driver = job.handles[rank].session.driver()
            for bucket in buckets:
                driver.launch(bucket)
            driver.finish()
        except Exception as error:
            caught = error
        busy(False)
    return caught, time.monotonic() - start


def stuck(name: str) -> None:
    """A rank does not come: the other gives the step up before the time limit is over, and does not wait for the device."""
    for job in _jobs(name):
        job.networks[0].stuck = True
        error, seconds = _attempt(job, 0, timeout=0.5)
        assert isinstance(error, PeerError) and "did not finish in 0.45 s" in str(error), (
            f"{job.case}: {error!r}"
        )
        assert 0.45 <= seconds < 5, f"{job.case}: {seconds}"
        error, seconds = _attempt(job, 0, timeout=60)
        assert isinstance(error, PeerError) and seconds < 30, f"{job.case}: {error!r} after {seconds} s"


def left(name: str) -> None:
    """A rank fails in its second bucket: the other learns of it at once, and which it was, and why."""
    for job in _jobs(name):
        before = _owed(job, 1)
        job.networks[0].stuck = True
        job.networks[1].fails_at = len(job.networks[1].issued) + 1
        with ThreadPoolExecutor(2) as pool:
            (error, seconds), (own, _) = pool.map(_attempt, [job] * 2, range(2), [60.0] * 2)
        assert isinstance(own, RuntimeError) and str(own) == "out of memory", f"{job.case}: {own!r}"
        expected = "rank 1 has left the step (RuntimeError: out of memory)"
        assert isinstance(error, PeerError) and expected in str(error), f"{job.case}: {error!r}"
        assert seconds < 20, f"{job.case}: {seconds}"
        torch.testing.assert_close(_owed(job, 1), before)


def together(name: str) -> None:
    """Backward raises on all ranks: they do not wait for each other, and their notes do not disturb the next step."""
    job = Job(cases_of(name)[0], TWO_BUCKETS)
    job.step(0)

    def raises(rank: int) -> None:
        network = job.networks[rank]
        network.stuck = True
        with Device():
            driver = job.handles[rank].session.driver()
            for number, grads in enumerate(gradients(TWO_BUCKETS, 1, torch.float32)[rank]):
                driver.launch(bucket_of(number, grads, True))
            driver.abandon("its backward pass raised an error")
            busy(False)
        network.stuck = False

    issued = [len(network.issued) for network in job.networks]
    for rank in range(2):
        raises(rank)
    rounds = {len(network.issued) - before for network, before in zip(job.networks, issued)}
    assert rounds == {2}, f"{job.case}: later rounds of a step that was given up"
    results = [of_rank for of_rank, *_ in job.step(1)]
    assert all(torch.equal(a, b) and a.isfinite().all() for a, b in zip(*results)), job.case
