"""What is recorded of a case: digests of bytes, or of low-rank methods a few numbers."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from golden import adapter
from golden.cases import CASES, CODECS, DTYPES, SHAPES, Case, gradients

FILE = Path(__file__).with_name("digests.json")
SAMPLES = 8
Of = Callable[[Sequence[Tensor]], Any]


def everything() -> list[Case]:
    return [*CASES, *CODECS]


def recorded() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(FILE.read_text())
    return found


def measure(case: Case) -> dict[str, Any]:
    """All digests of a case, by what they are of."""
    return _measure_codec(case) if case.memory == "codec" else _measure_run(case)


def _measure_run(case: Case) -> dict[str, Any]:
    results, states, sent = adapter.run(case, gradients(case.steps, case.dtype))
    values, factors = _kinds(case)
    return {
        **{name: values([step[name] for rank in results for step in rank]) for name in SHAPES},
        "state": [factors(_sorted(state)) for state in states],
        "sent": [factors(tensors) for tensors in sent],
    }


def _measure_codec(case: Case) -> dict[str, Any]:
    x = gradients(case.steps, case.dtype)[0][0][case.communicator]
    payload, decoded = adapter.encode(case, x, "w", seed=3, step=5, rank=1)
    values, factors = _kinds(case)
    return {"payload": factors(payload), "decoded": values([decoded])}


def _kinds(case: Case) -> tuple[Of, Of]:
    """What is recorded of gradients, and of what may hold factors: the sign of a factor's column is arbitrary."""
    return (_summary, _unsigned) if case.low_rank else (_digest, _digest)


def _sorted(tensors: Sequence[Tensor]) -> list[Tensor]:
    """In an order that depends on their sizes and values alone, not on where a state keeps them."""
    return sorted(tensors, key=lambda t: (t.numel(), _bytes(t)))


def _bytes(tensor: Tensor) -> bytes:
    return tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()


def _digest(tensors: Sequence[Tensor]) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for tensor in tensors:
        digest.update(_bytes(tensor))
    return digest.hexdigest()


def _summary(tensors: Sequence[Tensor]) -> dict[str, list[float]]:
    """Of all tensors of one size together, by that size: the norm and a few values."""
    sizes: dict[int, list[Tensor]] = {}
    for tensor in tensors:
        sizes.setdefault(tensor.numel(), []).append(tensor.detach().double().reshape(-1))
    found = {}
    for size, parts in sorted(sizes.items()):
        values = torch.cat(parts)
        places = [(2 * i + 1) * values.numel() // (2 * SAMPLES) for i in range(SAMPLES)]
        numbers = [values.norm().item(), *values[places].tolist()]
        found[str(size)] = [float(f"{number:.9g}") for number in numbers]
    return found


def _unsigned(tensors: Sequence[Tensor]) -> dict[str, list[float]]:
    return _summary([tensor.abs() for tensor in tensors])


def same(case: Case, found: Any, expected: Any) -> bool:
    """Equal; of low-rank methods, to rounding in the dtype of the gradients."""
    if isinstance(expected, list):
        return len(found) == len(expected) and all(same(case, f, e) for f, e in zip(found, expected))
    if not case.low_rank:
        return bool(found == expected)
    rtol = max(1e-5, 2 * torch.finfo(DTYPES[case.dtype]).eps)
    return found.keys() == expected.keys() and all(
        _close(found[size], expected[size], rtol) for size in expected
    )


def _close(found: Sequence[float], expected: Sequence[float], rtol: float) -> bool:
    # A value near zero carries the rounding errors of those around it.
    atol = rtol * max(map(abs, expected[1:]))
    return all(math.isclose(f, e, rel_tol=rtol, abs_tol=atol) for f, e in zip(found, expected, strict=True))
