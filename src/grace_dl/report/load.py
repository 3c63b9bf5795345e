"""Reads and checks result files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..bench import results
from ..errors import ConfigError, GraceError

_STEP = (
    "method",
    "model",
    "workers",
    "rate",
    "bits",
    "seconds",
    "reference_seconds",
    "over_reference",
)
FIELDS = {
    "kernels": ("method", "backend", "threads", "numel", "compress_copies", "decode_copies", "bits"),
    "step": (*_STEP, "parts", "leaving_bytes"),
    "link": (*_STEP, "parts", "leaving_bytes"),
    "traffic": ("method", "workers", "numel", "payload_bytes", "leaving_bytes", "measured_bytes"),
    "accuracy": (
        "task",
        "epochs",
        "workers",
        "rate",
        "bits",
        "method",
        "seed",
        "timed",
        "failed",
        "accuracy",
        "curve",
    ),
}
"""The benchmarks, and the fields that a page reads from each of their records."""

HEADER = ("command", "date", "machine", "settings")


@dataclass(frozen=True)
class Result:
    """The content of one result file."""

    name: str
    benchmark: str
    header: dict[str, Any]
    records: list[dict[str, Any]]


def read(paths: Sequence[Path]) -> list[Result]:
    """All files, without duplicates; raises for the first invalid one."""
    return [_read(path) for path in dict.fromkeys(paths)]


def _read(path: Path) -> Result:
    if not path.exists():
        raise ConfigError(
            f"there is no file {path}; make one with `grace bench link --out {path}`, or see `grace bench`."
        )
    if not path.is_file():
        raise ConfigError(f"{path} is a folder; name the result files in it, such as {path}/*.json.")
    try:
        content = results.load(path)
        header = {name: content[name] for name in HEADER}
        kind, records = content["benchmark"], content["records"]
    except (GraceError, KeyError) as error:
        reason = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        raise ConfigError(
            f"{path} cannot be shown: {reason} Give files that `grace bench` has written."
        ) from error
    if kind not in FIELDS:
        raise ConfigError(
            f"{path} holds results of {kind!r}, a benchmark unknown here; known: {', '.join(FIELDS)}. A newer grace may know it."
        )
    if not records:
        raise ConfigError(f"{path} holds no records yet; let `grace bench {kind}` measure something first.")
    for record in records:
        missing = [name for name in FIELDS[kind] if name not in record]
        if missing:
            raise ConfigError(
                f"{path}: record {record.get('id')!r} has no {', '.join(missing)}; measure anew with `grace bench {kind} --fresh`."
            )
    return Result(path.name, kind, header, records)
