"""Result files: JSON with a header that says where, when and how, and one record per measurement.

    {"schema": 1, "benchmark": "kernels", "command": [...], "date": "...", "machine": {...}, "settings": {...},
     "records": [{"id": "...", ...}]}

A record is saved as soon as it is measured; run again with the same settings, a benchmark goes on where it stopped.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

from .. import __version__
from ..errors import GraceError

SCHEMA = 1


def machine() -> dict[str, Any]:
    """What the figures depend on: processor, cores, memory, versions."""
    import torch

    model = ""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError):
        memory = 0
    return {
        "processor": model or platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "memory_gib": round(memory / 2**30, 1),
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "grace": __version__,
    }


class Results:
    """The records of one benchmark, kept in a file from the first measurement on."""

    def __init__(self, path: Path, benchmark: str, settings: dict[str, Any], fresh: bool = False) -> None:
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
            if saved[field] != self.header[field]:
                raise GraceError(
                    f"{self.path} holds results with another {field} ({saved[field]!r} instead of "
                    f"{self.header[field]!r}); give another --out, or --fresh to overwrite it."
                )
        self.header["date"] = saved["date"]
        self.records = {record["id"]: record for record in saved["records"]}

    def __contains__(self, identity: str) -> bool:
        return identity in self.records

    def add(self, identity: str, record: dict[str, Any]) -> None:
        """Keep one measurement, on disk too."""
        self.records[identity] = {"id": identity, **{k: v for k, v in record.items() if k != "id"}}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        draft = self.path.with_suffix(".part")
        draft.write_text(json.dumps({**self.header, "records": list(self.records.values())}, indent=1) + "\n")
        draft.replace(self.path)


def load(path: Path) -> dict[str, Any]:
    """A result file, checked."""
    try:
        content = json.loads(path.read_text())
        if content["schema"] != SCHEMA:
            raise GraceError(f"{path} has schema {content['schema']}; this version reads {SCHEMA}.")
        return dict(content)
    except (ValueError, KeyError, TypeError) as error:
        raise GraceError(f"{path} is no result file of a benchmark: {error!r}.") from error


def over_plain(record: dict[str, Any], plain: dict[str, Any]) -> float:
    """A step's time over that of plain DDP, whose record is `plain`: measured in turns, or by way of the silent step."""
    if record is not plain and "over_ddp" in record:
        return float(record["over_ddp"])
    return float(record["over_reference"] / plain["over_reference"])
