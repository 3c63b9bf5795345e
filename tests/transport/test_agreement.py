"""Ranks agree through the store: few requests, no keys left, and one prompt error for everybody."""

from __future__ import annotations

import datetime
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from torch.distributed import FileStore, HashStore, TCPStore

from grace_dl.errors import LayoutError, PeerError
from grace_dl.transport.agreement import StoreAgreement

TIMEOUT = datetime.timedelta(seconds=20)


class Counted:
    """A rank's view of a store, with the number of its requests, without those in a wait, which depend on time."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.requests = 0

    def __getattr__(self, name: str) -> Callable[..., Any]:
        self.requests += name != "check"
        return getattr(self._store, name)


def ranks(
    size: int, store: Any, work: Callable[[int, StoreAgreement], Any]
) -> tuple[list[Any], list[Counted]]:
    """Run `work(rank, agreement)` on a thread for each rank; errors are returned."""
    views = [Counted(store.clone()) for _ in range(size)]
    start = threading.Barrier(size)

    def one(rank: int) -> Any:
        start.wait()
        try:
            return work(rank, StoreAgreement(views[rank], "test", rank, size))
        except Exception as error:
            return error

    with ThreadPoolExecutor(size) as threads:
        return list(threads.map(one, range(size))), views


def stores() -> list[Any]:
    return [
        HashStore(),
        TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False),
        FileStore(tempfile.mktemp(), -1),
    ]


@pytest.mark.parametrize("store", stores(), ids=lambda store: type(store).__name__)
def test_the_store_is_empty_after_many_agreements(store: Any) -> None:
    before = store.num_keys()
    answers, _ = ranks(3, store, lambda rank, a: [a.reach(f"layout {n}", TIMEOUT) for n in range(10)])
    assert answers == [[[]] * 10] * 3
    assert store.num_keys() == before


def test_requests_do_not_grow_with_the_number_of_ranks() -> None:
    most = {}
    for size in (2, 8, 59, 60, 61, 130):
        store = HashStore()
        answers, views = ranks(size, store, lambda rank, a: a.reach("the same", TIMEOUT))
        assert answers == [[]] * size
        assert store.num_keys() == 0
        requests = sorted(view.requests for view in views)
        assert requests[-1] < 24, requests
        if size > 2:  # the last rank publishes the outcome, and one deletes the keys
            most[size] = requests[-3]
    assert max(most.values()) <= 6, most


@pytest.mark.parametrize("odd", [0, 1, 3])
@pytest.mark.parametrize("store", stores()[:2], ids=lambda store: type(store).__name__)
def test_every_rank_is_told_of_both_texts_at_once(store: Any, odd: int) -> None:
    started = time.monotonic()

    def work(rank: int, agreement: StoreAgreement) -> None:
        agreement.reach("first", TIMEOUT)
        agreement.reach("odd one" if rank == odd else "usual one", TIMEOUT)

    answers, _ = ranks(4, store, work)
    assert time.monotonic() - started < 10
    for answer in answers:
        assert isinstance(answer, LayoutError), answers
        assert "odd one" in str(answer) and "usual one" in str(answer)
        assert odd == 0 or f"rank {odd} has: odd one" in str(answer)
    assert store.num_keys() <= 1  # a TCPStore counts its clients


def test_agreements_go_on_after_a_disagreement() -> None:
    def work(rank: int, agreement: StoreAgreement) -> list[str]:
        with pytest.raises(LayoutError):
            agreement.reach(f"rank {rank}", TIMEOUT)
        return agreement.reach("the same", TIMEOUT)

    assert ranks(3, HashStore(), work)[0] == [[]] * 3


@pytest.mark.parametrize("absent", [0, 2])
def test_a_missing_rank_is_named_after_one_timeout(absent: int) -> None:
    store = HashStore()

    def work(rank: int, agreement: StoreAgreement) -> None:
        if rank != absent:
            agreement.reach("the layout", datetime.timedelta(seconds=0.5))

    started = time.monotonic()
    answers, _ = ranks(4, store, work)
    assert time.monotonic() - started < 5
    for rank, answer in enumerate(answers):
        if rank != absent:
            assert isinstance(answer, PeerError) and f"rank {absent} did not come" in str(answer), answer
    assert store.num_keys() == 0
    assert ranks(4, store, lambda rank, a: a.reach("again", TIMEOUT))[0] == [[]] * 4


def test_only_offers_that_all_accept_are_taken() -> None:
    def work(rank: int, agreement: StoreAgreement) -> list[str]:
        return agreement.reach(
            "x", TIMEOUT, ["a", "b", "c"] if rank == 0 else [], lambda o: (rank, o) != (2, "b")
        )

    store = HashStore()
    assert ranks(3, store, work)[0] == [["a", "c"]] * 3
    assert store.num_keys() == 0


def test_a_store_that_is_gone_is_reported_at_once() -> None:
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    client = TCPStore("127.0.0.1", server.port, is_master=False)
    agreement = StoreAgreement(client, "test", 1, 2)
    timer = threading.Timer(0.3, lambda: leave.clear())
    leave = [server]
    del server
    timer.start()
    started = time.monotonic()
    with pytest.raises(PeerError, match="serves the store"):
        agreement.reach("x", TIMEOUT)
    timer.join()
    assert time.monotonic() - started < 10


def test_a_rank_that_waits_leaves_the_store_to_its_other_threads() -> None:
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    agreement = StoreAgreement(server, "test", 0, 2)

    def wait() -> None:
        with pytest.raises(PeerError, match="rank 1 did not come"):
            agreement.reach("x", datetime.timedelta(seconds=8))

    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(wait)
        time.sleep(0.3)
        started = time.monotonic()
        for number in range(5):
            server.set("key", str(number))
        assert time.monotonic() - started < 5
        assert not waiting.done()
