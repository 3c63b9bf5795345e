"""Reads and checks result files: a page is built only from records whose fields have the right types."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..bench import results
from ..bench.target import ACCURACY, LOSS
from ..errors import ConfigError, GraceError

LARGEST = 1e30
"""Charts multiply and divide numbers, which must not overflow. None that was measured comes near it, or its inverse."""


@dataclass(frozen=True)
class Kind:
    """What a field may hold, as text and as a test."""

    text: str
    fits: Callable[[Any], bool]


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= LARGEST


def _or_none(kind: Kind) -> Kind:
    return Kind(f"{kind.text} or null", lambda value: value is None or kind.fits(value))


TEXT = Kind("text", lambda value: isinstance(value, str))
NUMBER = Kind("a number of at least 0", lambda value: _is_number(value) and value >= 0)
POSITIVE = Kind("a number above 0", lambda value: _is_number(value) and value >= 1 / LARGEST)
COUNT = Kind("a whole number of at least 0", lambda value: NUMBER.fits(value) and isinstance(value, int))
SOME = Kind("a whole number above 0", lambda value: POSITIVE.fits(value) and isinstance(value, int))
FLAG = Kind("true or false", lambda value: isinstance(value, bool))
PARTS = Kind(
    "numbers by name",
    lambda value: isinstance(value, dict) and all(_is_number(part) for part in value.values()),
)
POINT = {"epoch": NUMBER, "step": COUNT, "seconds": NUMBER, "bytes": NUMBER, "accuracy": NUMBER}
CURVE = Kind(
    "a list of evaluations",
    lambda value: isinstance(value, list) and all(map(_is_point, value)),
)

_STEP = {
    "method": TEXT,
    "model": TEXT,
    "workers": SOME,
    "rate": TEXT,
    "bits": POSITIVE,
    "seconds": POSITIVE,
    "reference_seconds": POSITIVE,
    "over_reference": POSITIVE,
    "parts": PARTS,
    "leaving_bytes": NUMBER,
}
_PREDICTED = {"model": TEXT, "method": TEXT, "predicted": POSITIVE, "measured": POSITIVE}
FIELDS: dict[str, dict[str, Kind]] = {
    "kernels": {
        "method": TEXT,
        "backend": TEXT,
        "threads": SOME,
        "numel": SOME,
        "compress_copies": NUMBER,
        "decode_copies": NUMBER,
        "bits": NUMBER,
    },
    "step": _STEP,
    "link": _STEP,
    "traffic": {
        "method": TEXT,
        "workers": SOME,
        "numel": SOME,
        "payload_bytes": NUMBER,
        "leaving_bytes": NUMBER,
        "measured_bytes": NUMBER,
    },
    "accuracy": {
        "task": TEXT,
        "epochs": SOME,
        "workers": SOME,
        "rate": TEXT,
        "bits": POSITIVE,
        "method": TEXT,
        "seed": COUNT,
        "timed": FLAG,
        "failed": _or_none(TEXT),
        "accuracy": _or_none(NUMBER),
        "seconds": _or_none(NUMBER),
        "leaving_bytes": _or_none(NUMBER),
        "curve": CURVE,
    },
    "plan": {
        "kind": TEXT,
        "method": TEXT,
        "workers": SOME,
        "bits": POSITIVE,
        "seconds": POSITIVE,
        "speedup": POSITIVE,
        "efficiency": NUMBER,
        "leaving_bytes": NUMBER,
    },
    "plan-validation": _PREDICTED,
    "plan-check": {**_PREDICTED, "workers": SOME, "rate": TEXT},
}
"""The benchmarks, and the fields that a page reads from each of their records."""

_COMMANDS = {
    "plan": "`grace plan`",
    "plan-check": "`grace plan --check`",
    "plan-validation": "`grace plan --validate`",
}
"""The commands that write results, other than `grace bench`."""

OPTIONAL = {
    "through": TEXT,
    "variant": _or_none(TEXT),
    "over_ddp": POSITIVE,
    "link": PARTS,
    "peak_bytes": NUMBER,
    "samples": _or_none(COUNT),
    "timed_epochs": _or_none(POSITIVE),
    "fitted": FLAG,
    **dict.fromkeys(
        ("break_even", "compute", "codec", "waiting", "exchange_bytes", "exchange_seconds"), NUMBER
    ),
    "every": SOME,
    "loss": _or_none(NUMBER),
    "judged_by": Kind("accuracy or loss", lambda value: value in (ACCURACY, LOSS)),
}
"""Fields that a page reads where a record has them."""

HEADER = {
    "command": Kind("a list", lambda value: isinstance(value, list)),
    "date": TEXT,
    "machine": Kind("an object", lambda value: isinstance(value, dict)),
    "settings": Kind("an object", lambda value: isinstance(value, dict)),
    "records": Kind(
        "a list of objects", lambda value: isinstance(value, list) and all(map(_is_object, value))
    ),
}


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


def _is_point(value: Any) -> bool:
    known = {**POINT, "loss": NUMBER}
    return _is_object(value) and value.keys() >= POINT.keys() and not _faults(value, known)


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
    except GraceError as error:
        raise ConfigError(
            f"{path} cannot be shown: {error} Give files that `grace bench` has written."
        ) from error
    missing = [name for name in (*HEADER, "benchmark") if name not in content]
    if missing:
        raise ConfigError(
            f"{path} cannot be shown: it has no {', '.join(missing)}. Give files that `grace bench` has written."
        )
    if faults := _faults(content, HEADER):
        raise ConfigError(f"{path} cannot be shown: {faults[0]}; give a file that `grace bench` has written.")
    kind, records = content["benchmark"], content["records"]
    if not isinstance(kind, str) or kind not in FIELDS:
        raise ConfigError(
            f"{path} holds results of {kind!r}, a benchmark unknown here; known: {', '.join(FIELDS)}. A newer grace may know it."
        )
    if not records:
        raise ConfigError(
            f"{path} holds no records yet; let {_COMMANDS.get(kind, f'`grace bench {kind}`')} add some first."
        )
    for number, record in enumerate(records, 1):
        _check(record, kind, f"{path}: record {record.get('id', number)!r}")
    if kind == "plan" and not any(record["kind"] == "here" for record in records):
        raise ConfigError(f"{path} holds no prediction for the cluster itself; run `grace plan` anew.")
    return Result(path.name, kind, {name: content[name] for name in HEADER if name != "records"}, records)


def _check(record: Mapping[str, Any], kind: str, name: str) -> None:
    again = f"write it anew with {_COMMANDS.get(kind, f'`grace bench {kind} --fresh`')}."
    missing = [name for name in FIELDS[kind] if name not in record]
    if missing:
        raise ConfigError(f"{name} has no {', '.join(missing)}; {again}")
    if faults := _faults(record, {**FIELDS[kind], **OPTIONAL}):
        raise ConfigError(f"{name}: {faults[0]}; {again}")


def _faults(values: Mapping[str, Any], kinds: Mapping[str, Kind]) -> list[str]:
    """Fields that hold something else than they should."""
    found = []
    for name, kind in kinds.items():
        if name in values and not kind.fits(values[name]):
            shown = repr(values[name])
            shown = shown if len(shown) <= 60 else f"{shown[:59]}…"
            found.append(f"{name}={shown} must be {kind.text}")
    return found
