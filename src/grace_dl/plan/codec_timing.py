"""Measures codec costs on this machine through the real exchange, and caches them.

A bucket goes through the driver with `EchoTransport`, so that everything a step does is timed except the network:
error feedback, checks, frames, and the interpreter's overhead per tensor.
"""

from __future__ import annotations

import gc
import json
import os
import platform
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from .. import __version__, kernels
from ..algebra.base import Single
from ..communicator.allgather import Allgather
from ..communicator.allreduce import Allreduce
from ..communicator.base import Communicator
from ..communicator.state import State
from ..pipeline.bucket import Bucket, Segment
from ..pipeline.driver import StepDriver
from ..pipeline.outline import Load
from ..telemetry import Stats
from .codecs import CodecCost, fit
from .echo import EchoTransport

SHAPES: tuple[tuple[int, tuple[int, int]], ...] = (
    (1, (64, 64)),
    (24, (64, 64)),
    (1, (1024, 256)),
    (6, (1024, 1024)),
)
"""Buckets that are timed: how many tensors, of which shape. The last is a whole bucket of DDP, too large for caches."""
PEERS = (1, 4)
"""Numbers of payloads that are decoded."""
REPEATS = 4
CACHES = 24 * 2**20
"""Bytes that are written to clear caches."""


def codec_of(part: Single, workers: int = 2) -> Communicator:
    """A communicator that runs the codec of a method, whatever exchange the method itself uses."""
    built = part.codec.build(EchoTransport(workers), State())
    if isinstance(built, (Allgather, Allreduce)) and type(built) in (Allgather, Allreduce):
        return built
    return Allgather(
        built.compressor,
        built.memory,
        transport=built.transport,
        state=built.state,
        seed=built.seed,
        dense_below=built.dense_below,
        label=built.label,
    )


def identity(part: Single) -> str:
    """What the cost of a method's codec depends on, as text."""
    codec = codec_of(part)
    return f"{type(codec).__name__} {codec.compressor!r} {codec.memory.__class__.__name__} {codec.memory.settings()!r}"


@dataclass(frozen=True)
class Effort:
    """How thoroughly a codec is timed."""

    shapes: Sequence[tuple[int, tuple[int, int]]] = SHAPES
    repeats: int = REPEATS
    caches: int = CACHES


THOROUGH = Effort()
QUICK = Effort(((1, (64, 64)), (24, (64, 64)), (1, (1024, 1024))), repeats=3, caches=4 * 2**20)
"""Enough for an estimate during training, in a few hundredths of a second for each method."""


Clock = Callable[[], float]


def measure(
    part: Single, device: str = "cpu", effort: Effort = THOROUGH, clock: Clock = time.perf_counter
) -> CodecCost:
    """Time the codec of a method."""
    encodes: list[tuple[Load, float]] = []
    decodes: list[tuple[Load, float]] = []
    bits = 32.0
    for count, shape in effort.shapes:
        for peers in PEERS:
            codec = codec_of(part, peers)
            if peers > 1 and isinstance(codec, Allreduce):
                continue  # a sum is decoded once
            load = Load(count, count * shape[0] * shape[1])
            encode, decode, payload = _time(codec, count, shape, torch.device(device), effort, clock)
            encodes.append((load, encode))
            decodes.append((load._replace(payloads=peers), decode))
            bits = 8 * payload / load.elements
    return CodecCost(fit(*zip(*encodes)), fit(*zip(*decodes)), bits)


class _Router:
    """Runs one communicator's programs."""

    def __init__(self, codec: Communicator) -> None:
        self.transport = codec.transport
        self.stats = Stats()
        self.codec = codec

    def programs(self, bucket: Bucket, step: int) -> Iterable[Any]:
        return [self.codec.program(bucket)]

    def joint(self, finite: bool, failed: bool) -> bool:
        return finite


def _time(
    codec: Communicator,
    count: int,
    shape: tuple[int, int],
    device: torch.device,
    effort: Effort,
    clock: Clock,
) -> tuple[float, float, float]:
    """The fastest launch and finish of a bucket in seconds, and its payload in bytes.

    The fastest, because other load can only add; with caches cleared before each, as the rest of a training step does.
    """
    numel = shape[0] * shape[1]
    generator = torch.Generator().manual_seed(7)
    values = torch.randn(count * numel, generator=generator).to(device)
    flat = torch.empty_like(values)
    views = [part.view(shape) for part in flat.split(numel)]
    segments = [Segment(f"w{i}", view.view(-1), view) for i, view in enumerate(views)]
    bucket = Bucket("timing", segments, flat, compress_all=True)
    router = _Router(codec)
    encodes, decodes = [], []
    other = torch.empty(effort.caches // 4, device=device)
    settle: Callable[[], object] = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    for turn in range(effort.repeats):
        flat.copy_(values)
        driver = StepDriver(router, turn)
        times = []
        for work in (lambda: driver.launch(bucket), driver.finish):  # noqa: B023
            other.zero_()
            settle()
            start = clock()
            work()
            settle()
            times.append(clock() - start)
        if turn:  # the first builds plans and state
            encodes.append(times[0])
            decodes.append(times[1])
    return min(encodes), min(decodes), router.stats.payload_bytes / effort.repeats


# Cache ------------------------------------------------------------------------------------------------


def cache_file() -> Path:
    """Where measured costs are kept: `GRACE_CACHE`, or `grace_dl` in the user's cache folder."""
    folder = os.environ.get("GRACE_CACHE")
    base = os.environ.get("XDG_CACHE_HOME")
    default = (Path(base) if base else Path.home() / ".cache") / "grace_dl"
    return (Path(folder) if folder else default) / "codecs.json"


@cache
def machine(device: str) -> str:
    """What measured costs depend on besides the method."""
    chip = platform.processor() or platform.machine()
    with suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        chip = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    if device == "cuda":
        chip = torch.cuda.get_device_name()
    backend = kernels.backend(kernels.forced, device)
    return f"grace {__version__}, torch {torch.__version__}, {backend.__name__}, {chip}, {torch.get_num_threads()} threads"


def codec_costs(
    parts: Iterable[Single],
    *,
    device: str = "cpu",
    fresh: bool = False,
    on_measure: Callable[[str], None] = lambda label: None,
) -> dict[Single, CodecCost]:
    """The costs of methods: cached ones, and the others measured now. `on_measure` is called before each measurement."""
    path, where = cache_file(), machine(device)
    saved = _load(path)
    known = {} if fresh else saved.get(where, {})
    costs: dict[Single, CodecCost] = {}
    measured: dict[str, Any] = {}
    for part in dict.fromkeys(parts):
        key = identity(part)
        entry = measured.get(key) or known.get(key)
        if entry is None:
            on_measure(str(part))
            entry = measured[key] = measure(part, device).to_dict()
            gc.collect()
        costs[part] = CodecCost.from_dict(entry)
    if measured:
        _save(path, {**saved, where: {**saved.get(where, {}), **measured}})
    return costs


def _load(path: Path) -> dict[str, dict[str, Any]]:
    with suppress(OSError, ValueError):
        content = json.loads(path.read_text())
        if isinstance(content, dict):
            return content
    return {}


def _save(path: Path, content: dict[str, Any]) -> None:
    """A cache that cannot be written is no error: the costs are measured again next time."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        draft.write_text(json.dumps(content, indent=1) + "\n")
        draft.replace(path)
