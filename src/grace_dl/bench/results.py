"""Result files: JSON with a header (machine, date, command) and one record per measurement.

    {"schema": 2, "benchmark": "kernels", "command": [...], "date": "...", "machine": {...}, "settings": {...},
     "records": [{"id": "...", "backend": "native", "method": "topk:0.01", ...}]}

The method of a record is in its text form. A record is saved as soon as it is measured; run again with the same
settings, a benchmark resumes.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .. import __version__, kernels
from ..errors import ConfigError, GraceError
from ..formatting import size
from ..output_files import check_writable, parse_json, write_text
from ..workers import memory_bytes
from .selection import BASELINES, DDP, FSDP, LOCAL

SCHEMA = 2


def check_elements(option: str, elements: int, copies: int) -> None:
    """Reject a number of float32 elements of which this machine cannot hold so many copies."""
    needed, present = 4 * elements * copies, memory_bytes()
    if present and needed > present:
        raise ConfigError(
            f"{option} {elements} needs at least {size(needed)} of memory, and this machine has {size(present)}; "
            f"give at most {present // (4 * copies)}."
        )


def machine() -> dict[str, Any]:
    """What results depend on: processor, cores, memory, versions."""
    import torch

    model = ""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    except OSError:
        pass
    return {
        "processor": model or platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "memory_gib": round(memory_bytes() / 2**30, 1),
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "grace": __version__,
        "kernels": kernels.name_for("cpu"),
    }


class Results:
    """The records of one benchmark, saved to a file from the first measurement on."""

    def __init__(self, path: Path, benchmark: str, settings: dict[str, Any], fresh: bool = False) -> None:
        check_writable(path, "--out")
        self.path = path
        self.header: dict[str, Any] = {
            "schema": SCHEMA,
            "benchmark": benchmark,
            "command": ["grace", *sys.argv[1:]],
            "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "machine": machine(),
            "settings": settings,
        }
        self.records: dict[str, dict[str, Any]] = {}
        if path.exists() and not fresh:
            self._resume(load(path))

    def _resume(self, saved: dict[str, Any]) -> None:
        for field in ("benchmark", "settings", "machine"):
            old, new = saved.get(field), self.header[field]
            if old != new:
                if isinstance(old, dict) and isinstance(new, dict):  # only what differs
                    old, new = (
                        {k: d.get(k) for k in {**old, **new} if old.get(k) != new.get(k)} for d in (old, new)
                    )
                raise GraceError(
                    f"{self.path} holds results with another {field} ({old!r} instead of {new!r}); give another "
                    "--out, or --fresh to overwrite it."
                )
        try:
            self.header["date"] = str(saved["date"])
            self.records = {record["id"]: dict(record) for record in saved["records"]}
        except (KeyError, TypeError, ValueError) as error:
            raise GraceError(
                f"{self.path} holds a damaged record ({error!r}); give another --out, or --fresh to overwrite it."
            ) from error

    def __contains__(self, identity: str) -> bool:
        return identity in self.records

    def add(self, identity: str, record: dict[str, Any]) -> None:
        """Add one measurement, and save the file."""
        self.add_all({identity: record})

    def add_all(self, records: Mapping[str, dict[str, Any]]) -> None:
        """Add measurements by their identities, and save the file once."""
        backend = self.header["machine"]["kernels"]
        for identity, record in records.items():
            fields = {name: value for name, value in record.items() if name != "id"}
            self.records[identity] = {"id": identity, "backend": backend, **fields}
        content = {**self.header, "records": list(self.records.values())}
        write_text(self.path, json.dumps(content, indent=1) + "\n")


def load(path: Path) -> dict[str, Any]:
    """A result file, checked."""
    try:
        content = parse_json(path.read_text())
    except (ValueError, RecursionError) as error:
        raise GraceError(f"{path} is not a result file of a benchmark: it is not JSON ({error}).") from error
    if not isinstance(content, dict) or "schema" not in content:
        raise GraceError(f"{path} is not a result file of a benchmark: it has no schema.")
    if content["schema"] != SCHEMA:
        shown = f"{content['schema']!r:.60}"
        raise GraceError(f"{path} has schema {shown}; this version reads {SCHEMA}; measure anew.")
    return content


def label_of(record: Mapping[str, Any]) -> str:
    """The label of a record: its method, and how it differs from others of the same method.

    >>> label_of({"method": "topk:0.01", "through": "optimizer"})
    'topk:0.01 (optimizer)'
    """
    through = record.get("through", "ddp")
    remark = record.get("variant") or (through if through not in (DDP, LOCAL, record["method"]) else None)
    return f"{record['method']} ({remark})" if remark else str(record["method"])


def of_pytorch(record: Mapping[str, Any]) -> bool:
    """Whether a record is of a baseline, for which only the whole step is known."""
    return record["method"] in (*BASELINES, FSDP)


def over_plain(record: dict[str, Any], plain: dict[str, Any]) -> float:
    """Step time relative to plain DDP, whose record is `plain`: measured directly, or through the silent step."""
    if record is not plain and "over_ddp" in record:
        return float(record["over_ddp"])
    return float(record["over_reference"] / plain["over_reference"])
