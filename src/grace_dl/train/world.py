"""The rank of this process under any launcher, and how the ranks find each other.

torchrun sets RANK and WORLD_SIZE, `mpirun` OMPI_* or PMI_*, `horovodrun` HOROVOD_*, `srun` SLURM_*; without any of them
there is a single process. The ranks always use torch.distributed (Gloo, or NCCL on GPUs), so no launcher's library is needed.
"""

from __future__ import annotations

import hashlib
import os
import re
import socket
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from ..errors import ConfigError, PeerError
from . import slurm
from .rendezvous import elastic_store, is_elastic

TIMEOUT = timedelta(minutes=30)

_LAUNCHERS = {
    "torchrun": ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    "horovodrun": ("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE"),
    "mpirun": (
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    "mpiexec": ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    "srun": (slurm.RANK, slurm.SIZE, slurm.LOCAL_RANK, ""),
}
"""Variables that hold rank, number of ranks, rank on this machine and ranks on this machine."""

_JOBS = ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "PMI_JOBID")
"""Variables that distinguish launches on one machine."""

_HEADS = ("OMPI_MCA_orte_hnp_uri", "OMPI_MCA_prte_hnp_uri")
"""Variables in which Open MPI 4 gives the address of mpirun."""


@dataclass(frozen=True)
class World:
    """The rank of this process, globally and on its machine."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    launcher: str = "none"

    @property
    def one_machine(self) -> bool:
        return self.local_size == self.size


def find(environment: Mapping[str, str] | None = None) -> World:
    """The rank according to the launcher's variables.

    >>> find({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"})
    World(rank=1, size=2, local_rank=1, local_size=2, launcher='mpirun')
    """
    env = os.environ if environment is None else environment
    for launcher, (rank, size, local_rank, local_size) in _LAUNCHERS.items():
        if rank not in env or size not in env:
            continue
        mine, all_ = _whole(env, rank), _whole(env, size)
        if not 0 <= mine < all_:
            raise ConfigError(f"{rank}={mine} and {size}={all_} contradict each other; set both, or neither.")
        here = _whole(env, local_size) if env.get(local_size, "").isdigit() else all_
        if launcher == "srun":
            if all_ == 1:  # an interactive shell, for example
                continue
            here = slurm.local_size(env) or all_
        local = _whole(env, local_rank) if local_rank in env else mine % here
        return World(mine, all_, local, here, launcher)
    return World()


def current() -> World:
    """The rank of this process: from the process group if there is one, otherwise from the launcher.

    Without a launcher's variables, all ranks of a group are assumed to be on one machine.
    """
    import torch.distributed as dist

    world = find()
    if not dist.is_initialized():
        return world
    rank, size = dist.get_rank(), dist.get_world_size()
    if (rank, size) == (world.rank, world.size):
        return world
    return World(rank, size, rank, size, "torch.distributed")


def _whole(env: Mapping[str, str], name: str) -> int:
    try:
        return int(env[name])
    except ValueError:
        raise ConfigError(f"{name}={env[name]!r} in the environment is not a whole number.") from None


def join(world: World, backend: str) -> bool:
    """Start torch.distributed; returns False if it is already running or there is no launcher."""
    import torch.distributed as dist

    if dist.is_initialized() or world.launcher == "none":
        return False
    if world.one_machine and backend == "gloo":
        for name in ("lo", "lo0"):
            if name in [interface for _, interface in socket.if_nameindex()]:
                os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
    if os.environ.get("MASTER_ADDR") and not (world.launcher == "torchrun" and is_elastic()):
        os.environ.setdefault("MASTER_PORT", "29500")
        dist.init_process_group(
            backend, init_method="env://", rank=world.rank, world_size=world.size, timeout=TIMEOUT
        )
    else:
        dist.init_process_group(
            backend, store=_store(world), rank=world.rank, world_size=world.size, timeout=TIMEOUT
        )
    return True


def gather(value: Any) -> list[Any]:
    """The values of all ranks, in order; every rank must call it."""
    import torch.distributed as dist

    if not dist.is_initialized():
        return [value]
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, value)
    return found


def share(value: Any, rank: int) -> Any:
    """The value of one rank; every rank must call it."""
    import torch.distributed as dist

    if not dist.is_initialized():
        return value
    box = [value]
    dist.broadcast_object_list(box, src=rank)
    return box[0]


def leave(world: World) -> None:
    """Destroy the process group that `join` started, once all ranks have arrived."""
    import torch.distributed as dist

    dist.barrier()
    dist.destroy_process_group()
    if world.rank == 0:
        meeting_place().unlink(missing_ok=True)


@contextmanager
def joined(world: World, device: str) -> Iterator[None]:
    """A process group for the duration of a run. An existing group is used, and not destroyed."""
    import torch
    import torch.distributed as dist

    backend = "nccl" if device.strip().lower() != "cpu" and torch.cuda.is_available() else "gloo"
    started = join(world, backend)
    try:
        yield
    except BaseException:
        if started and backend == "gloo":
            # Peers fail immediately instead of waiting for this rank. (NCCL might wait for them here.)
            dist.destroy_process_group()
        raise
    if started:
        leave(world)


def _store(world: World) -> Any:
    """A store that all ranks reach, and that no earlier start of the job has used."""
    from torch.distributed import FileStore, TCPStore

    if world.launcher == "torchrun" and is_elastic():
        return elastic_store(world.rank, world.size, TIMEOUT)
    if "HOROVOD_GLOO_RENDEZVOUS_ADDR" in os.environ:
        host, port = _through_horovod(world)
        return TCPStore(host, port, world.size, is_master=world.rank == 0, timeout=TIMEOUT)
    if world.one_machine:
        return FileStore(str(meeting_place()), world.size)
    head = slurm.head_node(os.environ) if world.launcher == "srun" else _head_node()
    if head is None:
        raise ConfigError(
            f"{world.size} ranks on several machines, and the address of rank 0 is unknown; give it to all ranks, for "
            "example mpirun -x MASTER_ADDR=server0 -x MASTER_PORT=29500 ..."
        )
    # Below the ports that systems give to outgoing connections (Linux: from 32768): one of those may have taken it.
    port = 20000 + int.from_bytes(hashlib.sha256(_job().encode()).digest()[:2], "little") % 12000
    return TCPStore(head, port, world.size, is_master=world.rank == 0, timeout=TIMEOUT)


def _job() -> str:
    for name in _JOBS:
        if os.environ.get(name):
            return f"{name}={os.environ[name]}"
    if slurm.SIZE in os.environ:
        return slurm.job(os.environ)
    return f"parent={os.getppid()}"


def meeting_place() -> Path:
    """The rendezvous file for ranks on one machine."""
    user = os.getuid() if hasattr(os, "getuid") else 0
    # The parent is the launcher's daemon, which all ranks of this machine share: job numbers may repeat.
    label = hashlib.sha256(f"{_job()}/{os.getppid()}".encode()).hexdigest()[:24]
    return Path(tempfile.gettempdir()) / f"grace-{user}-{label}"


def _head_node() -> str | None:
    """The machine where mpirun was called; rank 0 runs there by default."""
    for name in _HEADS:
        for part in os.environ.get(name, "").split(";"):
            if part.startswith("tcp"):
                return part.split("//", 1)[1].split(":")[0].split(",")[0]
    job = re.fullmatch(r"prterun-(.+)-\d+@\d+", os.environ.get("PMIX_NAMESPACE", ""))  # Open MPI 5
    return job[1] if job else None


def _through_horovod(world: World) -> tuple[str, int]:
    """The address of rank 0, through the key-value server of horovodrun."""
    server = (
        f"http://{os.environ['HOROVOD_GLOO_RENDEZVOUS_ADDR']}:{os.environ['HOROVOD_GLOO_RENDEZVOUS_PORT']}"
    )
    key = f"{server}/grace/rank0"
    if world.rank == 0:
        host = "127.0.0.1" if world.one_machine else os.environ.get("HOROVOD_HOSTNAME", socket.gethostname())
        with socket.socket() as probe:
            probe.bind(("", 0))
            port = probe.getsockname()[1]
        request = urllib.request.Request(key, data=f"{host} {port}".encode(), method="PUT")
        urllib.request.urlopen(request, timeout=30).close()
        return host, port
    deadline = time.monotonic() + TIMEOUT.total_seconds()
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(key, timeout=30) as response:
                host, port_text = response.read().decode().split()
                return host, int(port_text)
        except urllib.error.HTTPError:  # rank 0 has not set it yet
            time.sleep(0.05)
    raise PeerError(f"rank 0 did not publish its address at {server}; look at its log.")
