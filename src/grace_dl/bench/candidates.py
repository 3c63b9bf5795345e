"""Which ways of exchanging gradients a benchmark of steps compares."""

from __future__ import annotations

from typing import Any

from ..errors import ConfigError
from ..helper import grace_from_params
from ..registry import methods, unknown
from .step import BASELINES, METHODS, Candidate

PLAIN = {"ddp": BASELINES[0], "ssgd": BASELINES[0], "ddp-fp16": BASELINES[1]}
"""Names of what PyTorch itself does: DDP, which is plain synchronous SGD, and its 16-bit hook."""


def candidates(names: list[str] | None, rank: int | None = None) -> list[Candidate]:
    """The usual choice beside the baselines (with "all", every other method too); or the methods asked for; or exactly the list, if it names a baseline too.

    `rank` goes to methods of low rank.

    >>> [label for label, _ in candidates(["ssgd", "acpsgd"], rank=8)]
    ['ddp', 'acpsgd rank 8']
    """
    known = methods()
    baselines: list[Candidate] = [(label, None) for label in BASELINES]
    if names is None or names == ["all"]:
        usual = [_ranked(label, params or {}, rank) for label, params in METHODS]
        seen = {(params or {})["compressor"] for _, params in METHODS}
        others = [_ranked(name, {"compressor": name}, rank) for name in known if name not in seen]
        return _checked([*baselines, *usual, *(others if names else [])])
    for name in names:
        if name not in PLAIN and name not in known:
            raise unknown("method", name, [*PLAIN, *known])
    chosen = [
        (PLAIN[name], None) if name in PLAIN else _ranked(name, {"compressor": name}, rank) for name in names
    ]
    if not set(names) & set(PLAIN):
        chosen = [*baselines, *chosen]
    return _checked(list({label: (label, params) for label, params in chosen}.values()))


def _ranked(label: str, params: dict[str, Any], rank: int | None) -> Candidate:
    parameters = {p.name for p in methods()[params["compressor"]].parameters}
    if rank is None or "rank" not in parameters:
        return label, params
    return f"{params['compressor']} rank {rank}", {**params, "rank": rank}


def _checked(chosen: list[Candidate]) -> list[Candidate]:
    """Wrong settings are said before any worker is started."""
    for label, params in chosen:
        if params is not None:
            try:
                grace_from_params(params)
            except ConfigError as error:
                raise ConfigError(f"{label}: {error}") from None
    return chosen
