"""Which ways of exchanging gradients a benchmark of steps compares."""

from __future__ import annotations

from typing import Any

from ..errors import ConfigError
from ..helper import grace_from_params
from ..registry import methods, unknown
from .step import BASELINES, METHODS, Candidate

PLAIN = {"ddp": BASELINES[0], "ssgd": BASELINES[0], "ddp-fp16": BASELINES[1]}
"""Names of what PyTorch itself does: DDP, which is plain synchronous SGD, and its 16-bit hook."""


def candidates(
    names: list[str] | None, rank: int | None = None, through: tuple[str, ...] = ("ddp",)
) -> list[Candidate]:
    """The usual choice beside the baselines (with "all", every other method too); or the methods asked for; or exactly the list, if it names a baseline too.

    `rank` goes to methods of low rank; `through` says by which doors methods are attached.

    >>> [c.label for c in candidates(["ssgd", "acpsgd"], rank=8, through=("ddp", "optimizer"))]
    ['ddp', 'acpsgd rank 8', 'acpsgd rank 8 (optimizer)']
    """
    known = methods()
    baselines = [Candidate(label) for label in BASELINES]
    if names is None or names == ["all"]:
        usual = [_ranked(label, params, rank) for label, params in METHODS]
        seen = {params["compressor"] for _, params in METHODS}
        others = [_ranked(name, {"compressor": name}, rank) for name in known if name not in seen]
        chosen = [*baselines, *usual, *(others if names else [])]
    else:
        for name in names:
            if name not in PLAIN and name not in known:
                raise unknown("method", name, [*PLAIN, *known])
        chosen = [
            Candidate(PLAIN[name]) if name in PLAIN else _ranked(name, {"compressor": name}, rank)
            for name in names
        ]
        if not set(names) & set(PLAIN):
            chosen = [*baselines, *chosen]
    placed = [_attached(candidate, door) for candidate in chosen for door in through]
    return _checked(list({candidate.label: candidate for candidate in placed}.values()))


def _ranked(label: str, params: dict[str, Any], rank: int | None) -> Candidate:
    parameters = {p.name for p in methods()[params["compressor"]].parameters}
    if rank is None or "rank" not in parameters:
        return Candidate(label, params)
    return Candidate(f"{params['compressor']} rank {rank}", {**params, "rank": rank})


def _attached(candidate: Candidate, door: str) -> Candidate:
    """The candidate by this door; what PyTorch does itself has only one."""
    if candidate.params is None or door == "ddp":
        return candidate
    return Candidate(f"{candidate.label} ({door})", candidate.params, door)


def _checked(chosen: list[Candidate]) -> list[Candidate]:
    """Wrong settings are said before any worker is started."""
    for candidate in chosen:
        if candidate.params is not None:
            try:
                grace_from_params(candidate.params)
            except ConfigError as error:
                raise ConfigError(f"{candidate.label}: {error}") from None
    return chosen
