"""Ranks that Slurm's `srun` has started without torchrun: `srun grace train ...`.

Only variables of the job step count. A batch script has SLURM_PROCID and SLURM_NTASKS too, but runs once.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ..errors import ConfigError

RANK, SIZE, LOCAL_RANK = "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"
_PER_NODE, _NODES = "SLURM_STEP_TASKS_PER_NODE", "SLURM_STEP_NODELIST"


def local_size(env: Mapping[str, str]) -> int | None:
    """The number of ranks on this machine, if Slurm says.

    >>> local_size({"SLURM_STEP_TASKS_PER_NODE": "4(x2),1", "SLURM_NODEID": "2"})
    1
    """
    counts: list[int] = []
    for part in filter(None, env.get(_PER_NODE, "").split(",")):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if match is None:
            raise ConfigError(f"{_PER_NODE}={env[_PER_NODE]!r} cannot be read; start the job with torchrun.")
        counts += [int(match[1])] * int(match[2] or 1)
    node = int(env.get("SLURM_NODEID", "0"))
    return counts[node] if node < len(counts) else None


def head_node(env: Mapping[str, str]) -> str | None:
    """The machine of rank 0: the first one of the job step.

    >>> head_node({"SLURM_STEP_NODELIST": "gpu-[03-07,12],cpu1"})
    'gpu-03'
    """
    match = re.match(r"([^,\[]+)(?:\[(\w+)[^\]]*\]([^,]*))?", env.get(_NODES, ""))
    return None if match is None else match[1] + (match[2] or "") + (match[3] or "")


def job(env: Mapping[str, str]) -> str:
    """What distinguishes this job step from others."""
    return f"slurm {env.get('SLURM_JOB_ID')}.{env.get('SLURM_STEP_ID')}"
