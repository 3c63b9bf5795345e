"""Which methods, settings, partners and dtypes the golden tests run over, and on which gradients.

Every setting is written out, so that a changed default changes no digest.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from grace_dl import catalog

RANKS = 3
SHAPES = {"matrix": (64, 72), "vector": (4999,)}
DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}
LOW_RANK = ("powersgd", "acpsgd")
"""Go through torch's matrix products, whose last bits differ between CPUs: compared as numbers, not as bytes."""

_DGC = {
    "compress_ratio": 0.01,
    "sample_ratio": 0.01,
    "strided_sample": True,
    "compress_upper_bound": 1.3,
    "compress_lower_bound": 0.8,
    "max_adaptation_iters": 10,
    "resample": True,
    "fp16_values": False,
    "warmup_epochs": 0,
    "warmup_steps": 0,
}
_POWERSGD = {"rank": 2, "min_compression_rate": 2, "start_iter": 0, "num_iters_per_step": 1}
_ACPSGD = {"rank": 2, "min_compression_rate": 2, "start_iter": 0}
_RESIDUAL = {"beta": 1.0, "gamma": 1.0}
_DGC_MEMORY = {"momentum": 0.9, "nesterov": False, "momentum_masking": True, "gradient_clipping": None}
_MEMORY_SETTINGS: dict[str, dict[str, Any]] = {
    "residual": _RESIDUAL,
    "dgc": _DGC_MEMORY,
    "ef21": {"eta": 0.5},
    "loco": {"decay": 0.8, "reset": 3},
    "demo": {"decay": 0.999},
}


@dataclass(frozen=True)
class Case:
    """A method with settings, a memory and a communicator, on gradients of a dtype."""

    label: str
    method: str
    settings: dict[str, Any]
    memory: str
    communicator: str
    memory_settings: dict[str, Any] = field(default_factory=dict)
    dtype: str = "float32"
    steps: int = 4

    def __str__(self) -> str:
        return f"{self.label}-{self.memory}-{self.communicator}-{self.dtype}"

    @property
    def low_rank(self) -> bool:
        return self.method in LOW_RANK


_SUMMED = "allreduce allgather broadcast alltoall"
_ELEMENTWISE = "allgather broadcast alltoall"
_GATHERED = "allgather broadcast"
_SPARSE = "allgather broadcast sparse_allreduce"

# Label, method, settings, memories and communicators; the first of each is used for all dtypes.
_TABLE: list[tuple[str, str, dict[str, Any], str, str]] = [
    ("none", "none", {}, "none residual", _SUMMED),
    ("fp16", "fp16", {}, "none residual", _SUMMED),
    ("bf16", "bf16", {}, "none residual", _SUMMED),
    ("fp8", "fp8", {}, "residual none", _ELEMENTWISE),
    ("int8", "int8", {}, "none residual", _ELEMENTWISE),
    ("int4", "int4", {}, "none residual loco", _ELEMENTWISE),
    ("u8bit", "u8bit", {}, "residual none", _ELEMENTWISE),
    ("natural", "natural", {}, "none residual", _ELEMENTWISE),
    ("inceptionn-2^-10", "inceptionn", {"error_bound": 2.0**-10}, "residual none", _GATHERED),
    (
        "qsgd-127-l2",
        "qsgd",
        {"quantum_num": 127, "bucket_size": 128, "norm": "l2"},
        "none residual",
        _ELEMENTWISE,
    ),
    ("qsgd-7-max", "qsgd", {"quantum_num": 7, "bucket_size": 64, "norm": "max"}, "none", "allgather"),
    ("terngrad", "terngrad", {}, "none residual", _ELEMENTWISE),
    ("onebit", "onebit", {}, "residual none", _ELEMENTWISE),
    ("signsgd", "signsgd", {}, "none", _ELEMENTWISE),
    ("signum-0.9", "signum", {"momentum": 0.9}, "signum", _ELEMENTWISE),
    ("efsignsgd-0.1", "efsignsgd", {"lr": 0.1}, "efsignsgd", _ELEMENTWISE),
    ("sketch-64", "sketch", {"quantiles": 64}, "residual none", _ELEMENTWISE),
    ("eden-1", "eden", {"bits": 1, "scale": "unbiased"}, "none residual", _ELEMENTWISE),
    ("eden-4", "eden", {"bits": 4, "scale": "unbiased"}, "none residual", _ELEMENTWISE),
    ("topk-0.01", "topk", {"compress_ratio": 0.01, "value_dtype": None}, "residual none", _SPARSE),
    ("topk-0.3", "topk", {"compress_ratio": 0.3, "value_dtype": None}, "residual none", _SPARSE),
    (
        "topk-0.01-half",
        "topk",
        {"compress_ratio": 0.01, "value_dtype": "float16"},
        "residual",
        "allgather sparse_allreduce",
    ),
    # Scaled values without a memory, plain ones with error feedback: what the method chooses by itself.
    ("randomk-0.1", "randomk", {"compress_ratio": 0.1, "scaled": True}, "none", "allreduce " + _GATHERED),
    (
        "randomk-0.1-plain",
        "randomk",
        {"compress_ratio": 0.1, "scaled": False},
        "residual",
        "allreduce " + _GATHERED,
    ),
    ("threshold-0.01", "threshold", {"threshold": 0.01, "value_dtype": None}, "residual none", _SPARSE),
    ("threshold-0.5", "threshold", {"threshold": 0.5, "value_dtype": None}, "residual", "allgather"),
    ("dgc-0.01", "dgc", _DGC, "dgc residual", _SPARSE),
    ("dgc-0.01-half", "dgc", _DGC | {"fp16_values": True}, "dgc", "allgather"),
    (
        "dgc-0.01-drawn",
        "dgc",
        _DGC | {"sample_ratio": 0.1, "strided_sample": False, "resample": False},
        "dgc",
        "allgather",
    ),
    ("dgc-0.01-warmup", "dgc", _DGC | {"warmup_epochs": 3, "warmup_steps": 2}, "dgc residual", _SPARSE),
    ("adaq-0.1", "adaq", {"compress_ratio": 0.1}, "residual none", _SPARSE),
    ("chunktopk", "chunktopk", {"kept": 64, "chunk": 4096, "bits": 2}, "residual none ef21", _SPARSE),
    ("demo", "demo", {"kept": 32, "sign": False, "value_dtype": None}, "demo none", _GATHERED),
    ("powersgd-2", "powersgd", _POWERSGD, "powersgd", "allreduce"),
    ("powersgd-2-twice", "powersgd", _POWERSGD | {"num_iters_per_step": 2}, "powersgd", "allreduce"),
    ("powersgd-2-start2", "powersgd", _POWERSGD | {"start_iter": 2}, "powersgd", "allreduce"),
    ("acpsgd-2", "acpsgd", _ACPSGD, "acpsgd", "allreduce"),
    ("acpsgd-2-start2", "acpsgd", _ACPSGD | {"start_iter": 2}, "acpsgd", "allreduce"),
]


def _cases() -> Iterator[Case]:
    for label, method, settings, memories, ways in _TABLE:
        pairs = [
            (memory, way)
            for memory in memories.split()
            for way in ways.split()
            if way in catalog.communicators_of(catalog.info(method), catalog.MEMORIES[memory])
        ]
        steps = 6 if label.endswith(("-warmup", "-start2")) else 4
        for place, (memory, way) in enumerate(pairs):
            extra = _MEMORY_SETTINGS.get(memory, {})
            for dtype in DTYPES if place == 0 else ["float32"]:
                yield Case(label, method, settings, memory, way, extra, dtype, steps)
    # Settings of memories.
    decayed = {"beta": 0.9, "gamma": 0.5}
    for label, method, settings in (
        ("topk-0.01", "topk", {"compress_ratio": 0.01, "value_dtype": None}),
        ("onebit", "onebit", {}),
    ):
        yield Case(f"{label}-decayed", method, settings, "residual", "allgather", decayed)
    dgc = Case("dgc-0.01", "dgc", _DGC, "dgc", "allgather", _DGC_MEMORY)
    for label, change in (
        ("nesterov", {"nesterov": True}),
        ("unmasked", {"momentum_masking": False}),
        ("clipped", {"gradient_clipping": 1.0}),
    ):
        yield replace(dgc, label=f"dgc-0.01-{label}", memory_settings=_DGC_MEMORY | change)


CASES = list(_cases())

CODECS = [
    Case(label, method, settings, "codec", name, dtype=dtype)
    for label, method, settings, *_ in _TABLE
    if not label.endswith(("-warmup", "-start2", "-twice"))
    for name in SHAPES
    for dtype in ("float32", "float64")
]
"""Encoding one tensor alone; the communicator's place in the name is the tensor's. Half precision is widened first."""


@functools.cache
def gradients(steps: int, dtype: str) -> list[list[dict[str, Tensor]]]:
    """`[rank][step][name]`: values of several magnitudes, alike in part over ranks as gradients are.

    Only integers and single additions and products, which are the same on every CPU.
    """
    raw = np.random.PCG64(1234)

    def uniform(count: int) -> np.ndarray[Any, Any]:
        return (raw.random_raw(count) >> np.uint64(40)).astype(np.float64) / 2.0**24

    def draw() -> dict[str, Tensor]:
        found = {}
        for name, shape in SHAPES.items():
            count = int(np.prod(shape))
            bell = uniform(count) + uniform(count) + uniform(count) - 1.5
            found[name] = torch.from_numpy(2 * bell * uniform(count)).view(shape)
        return found

    common = [draw() for _ in range(steps)]
    return [
        [{n: (c[n] + own[n]).to(DTYPES[dtype]) for n in c} for c, own in ((c, draw()) for c in common)]
        for _ in range(RANKS)
    ]
