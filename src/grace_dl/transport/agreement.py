"""Agreement of all ranks on a text, through a key-value store, with a constant number of requests per rank.

Rank 0 publishes a digest of its text, and every other rank compares it with its own. Ranks that agree are counted, and
the last one publishes the outcome; a rank that differs publishes its text as the outcome at once, and one whose time is
up the ranks that are missing. The first outcome stands for all. The last rank to read it deletes all keys, so the store
does not grow.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import time
from collections.abc import Callable, Sequence
from typing import Any

from ..errors import LayoutError, PeerError
from .base import disagreement

_BITS = 60
"""Ranks whose arrival is counted in one key: a bit for each, in a signed number of 64 bits."""

SHORTEST_PAUSE, LONGEST_PAUSE = 0.001, 0.1
"""Seconds between two looks at a key. The pause grows with the time waited, by an eighth of it."""


class StoreAgreement:
    """The agreements of one transport, in order; `label` identifies the transport on all its ranks."""

    def __init__(self, store: Any, label: str, rank: int, size: int) -> None:
        self._store = store
        self._label = label
        self._rank = rank
        self._size = size
        self._reached = 0

    def reach(
        self,
        text: str,
        timeout: datetime.timedelta,
        offered: Sequence[str] = (),
        accepts: Callable[[str], bool] = lambda _: True,
    ) -> list[str]:
        """Return when all ranks have passed the same `text`; otherwise raise on every rank.

        Rank 0 may offer items; returns those that every rank accepts.
        """
        keys = _Keys(f"{self._label}/{self._reached + 1}", self._size)
        deadline = time.monotonic() + timeout.total_seconds()
        try:
            if self._rank == 0:
                self._store.set(keys.text, text)
                self._store.set(keys.first, json.dumps([_digest(text), list(offered)]))
            outcome: dict[str, Any] = {"missing": [0]}
            if self._wait(keys.first, deadline):
                digest, offers = json.loads(self._store.get(keys.first))
                if digest == _digest(text):
                    self._arrive(keys, [offer for offer in offers if not accepts(offer)], offers)
                else:
                    self._publish(keys, {"rank": self._rank, "text": text})
                if not self._wait(keys.outcome, deadline):
                    self._publish(
                        keys, {"missing": [r for r in range(self._size) if not self._came(keys, r)]}
                    )
                outcome = json.loads(self._store.get(keys.outcome))
                if "rank" in outcome:
                    outcome["first"] = self._store.get(keys.text).decode()
                self._depart(keys, offers, "missing" in outcome)
        except RuntimeError as error:
            raise PeerError(
                f"ranks could not compare what they exchange: {error}. The process that serves the store (usually rank 0) "
                "has ended; look at its log."
            ) from error
        if "missing" in outcome:
            missing = outcome["missing"]
            raise PeerError(
                f"rank{'s' if len(missing) > 1 else ''} {', '.join(map(str, missing))} did not come to exchange "
                f"{self._reached + 1} in {timeout.total_seconds():g} s, where rank {self._rank} brings: {text}\n"
                "It has ended, is stuck, or has other buckets; look at its log."
            )
        self._reached += 1
        if "rank" in outcome:
            raise LayoutError(disagreement(0, outcome["first"], outcome["rank"], outcome["text"]))
        return list(outcome["accepted"])

    def _arrive(self, keys: _Keys, refused: list[str], offers: list[str]) -> None:
        for offer in refused:
            self._store.add(keys.refused(offer), 1)
        word = self._rank // _BITS
        if self._store.add(keys.came(word), 1 << self._rank % _BITS) != keys.full(word):
            return
        if keys.words > 1 and self._store.add(keys.complete, 1) != keys.words:
            return
        accepted = [offer for offer in offers if not self._store.add(keys.refused(offer), 0)]
        self._publish(keys, {"accepted": accepted})

    def _publish(self, keys: _Keys, outcome: dict[str, Any]) -> None:
        self._store.compare_set(keys.outcome, "", json.dumps(outcome))

    def _depart(self, keys: _Keys, offers: list[str], missing: bool) -> None:
        if missing and not self._came(keys, self._rank):
            return  # it came late, with another text, and was not counted
        read = self._store.add(keys.read, 1)
        expected = sum(self._came(keys, rank) for rank in range(self._size)) if missing else self._size
        if read >= expected:
            keys.delete(self._store, offers)

    def _wait(self, key: str, deadline: float) -> bool:
        """Whether a key was set in time; raises if the store is gone."""
        # Not `wait`, which blocks the store for the other threads of this rank, and prints warnings when its time is up.
        begin = time.monotonic()
        while not self._store.check([key]):
            now = time.monotonic()
            if now >= deadline:
                return False
            pause = min(max((now - begin) / 8, SHORTEST_PAUSE), LONGEST_PAUSE)
            time.sleep(min(pause, deadline - now))
        return True

    def _came(self, keys: _Keys, rank: int) -> bool:
        return bool(self._store.add(keys.came(rank // _BITS), 0) >> rank % _BITS & 1)


class _Keys:
    """The keys of one agreement."""

    def __init__(self, place: str, size: int) -> None:
        self._place = place
        self._size = size
        self.words = -(-size // _BITS)
        self.text, self.first = f"{place}/text", f"{place}/first"
        self.outcome, self.read = f"{place}/outcome", f"{place}/read"
        self.complete = f"{place}/complete"

    def came(self, word: int) -> str:
        return f"{self._place}/came/{word}"

    def full(self, word: int) -> int:
        """The number in which every rank of a word has its bit set."""
        return (1 << min(_BITS, self._size - word * _BITS)) - 1

    def refused(self, offer: str) -> str:
        return f"{self._place}/refused/{offer}"

    def delete(self, store: Any, offers: Sequence[str]) -> None:
        words = [self.came(word) for word in range(self.words)]
        fixed = [self.text, self.first, self.outcome, self.read, *words]
        for key in [*fixed, *([self.complete] if self.words > 1 else []), *map(self.refused, offers)]:
            store.delete_key(key)


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
