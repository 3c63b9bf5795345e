"""Result files: JSON with a header (machine, date, command) and one record per measurement.

    {"schema": 2, "benchmark": "kernels", "command": [...], "date": "...", "machine": {...}, "settings": {...},
     "records": [{"id": "...", "method": "topk:0.01", ...}]}

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

from .. import __version__
from ..errors import GraceError
from .selection import BASELINES

SCHEMA = 2


def machine() -> dict[str, Any]:
    """What results depend on: processor, cores, memory, versions."""
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
    """The records of one benchmark, saved to a file from the first measurement on."""

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
        """Add one measurement, and save the file."""
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
            raise GraceError(
                f"{path} has schema {content['schema']}; this version reads {SCHEMA}; measure anew."
            )
        return dict(content)
    except (ValueError, KeyError, TypeError) as error:
        raise GraceError(f"{path} is not a result file of a benchmark: {error!r}.") from error


def label_of(record: Mapping[str, Any]) -> str:
    """The label of a record: its method, and how it differs from others of the same method.

    >>> label_of({"method": "topk:0.01", "through": "optimizer"})
    'topk:0.01 (optimizer)'
    """
    through = record.get("through", "ddp")
    remark = record.get("variant") or (through if through != "ddp" else None)
    return f"{record['method']} ({remark})" if remark else str(record["method"])


def of_pytorch(record: Mapping[str, Any]) -> bool:
    """Whether a record is of a baseline, for which only the whole step is known."""
    return record["method"] in BASELINES


def over_plain(record: dict[str, Any], plain: dict[str, Any]) -> float:
    """Step time relative to plain DDP, whose record is `plain`: measured directly, or through the silent step."""
    if record is not plain and "over_ddp" in record:
        return float(record["over_ddp"])
    return float(record["over_reference"] / plain["over_reference"])
