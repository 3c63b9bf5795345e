"""A store for the ranks of one start of an elastic job.

torchrun keeps one store for all restarts of a job. It still holds the addresses of workers that have ended, and a worker that
reads one before it is replaced cannot connect. Therefore each start uses a prefix of its own, on which its ranks agree here.
"""

from __future__ import annotations

import os
import time
import uuid
from datetime import timedelta
from typing import Any

from ..errors import PeerError

_PAUSE = 0.02


def is_elastic() -> bool:
    """Whether torchrun serves the store, which then outlives this start."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def elastic_store(rank: int, size: int, timeout: timedelta) -> Any:
    """torchrun's store, under a prefix that only the ranks of this start know."""
    from torch.distributed import PrefixStore, TCPStore

    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = TCPStore(address, port, is_master=False, timeout=timeout)
    label = _announce(store, size, timeout) if rank == 0 else _ask(store, rank, timeout)
    return PrefixStore(f"grace/start/{label}", store)


def _announce(store: Any, size: int, timeout: timedelta) -> str:
    """Rank 0: choose a label, and answer every request until all other ranks have confirmed that label.

    A request may be left from an earlier start; whoever made it is gone, so answering it does no harm.
    """
    label, missing, answered = uuid.uuid4().hex, set(range(1, size)), set()
    deadline = time.monotonic() + timeout.total_seconds()
    while missing:
        for rank in sorted(missing):
            request = _read(store, f"grace/request/{rank}")
            if request is not None and request not in answered:
                store.set(f"grace/answer/{request}", label)
                answered.add(request)
            if store.check([f"grace/confirmed/{label}/{rank}"]):
                store.delete_key(f"grace/confirmed/{label}/{rank}")
                missing.discard(rank)
        if time.monotonic() > deadline:
            raise PeerError(f"ranks {sorted(missing)} did not start within {timeout}; look at their logs.")
        time.sleep(_PAUSE if missing else 0)
    for request in answered:
        store.delete_key(f"grace/answer/{request}")
    return label


def _ask(store: Any, rank: int, timeout: timedelta) -> str:
    request = uuid.uuid4().hex
    store.set(f"grace/request/{rank}", request)
    answer = f"grace/answer/{request}"
    try:
        store.wait([answer], timeout)
    except RuntimeError as error:
        raise PeerError(f"rank 0 did not start within {timeout}; look at its log.") from error
    label = str(store.get(answer).decode())
    store.set(f"grace/confirmed/{label}/{rank}", "")
    return label


def _read(store: Any, key: str) -> str | None:
    return str(store.get(key).decode()) if store.check([key]) else None
