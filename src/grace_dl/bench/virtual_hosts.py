"""Virtual hosts connected by links of a given rate, built on one machine from network namespaces and `tc tbf`.

Each host is a network namespace with one interface, connected to the others by a bridge in its own namespace. Both ends
of every link are limited to the rate. The machine's real interfaces, addresses and routes are not touched. A watcher
process removes the namespaces when this process ends, even if it is killed.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import TracebackType

from ..errors import ConfigError, GraceError

INTERFACE = "grace0"
_CLONE_NEWNET = 0x40000000
UNLIMITED_BITS = 1e15
"""Represents infinity in result files, since JSON has none."""
_RATE = re.compile(r"(\d+(?:\.\d+)?)(k|m|g)bit")


def check_rate(rate: str) -> float:
    """Bits per second of a rate such as `100mbit`; infinity for `unlimited`.

    >>> check_rate("100mbit"), check_rate("2.5gbit"), check_rate("unlimited")
    (100000000.0, 2500000000.0, inf)
    """
    if rate == "unlimited":
        return float("inf")
    found = _RATE.fullmatch(rate)
    if not found or float(found[1]) == 0:
        raise ConfigError(f"rate {rate!r} is no link rate; write 100mbit, 1gbit, 10gbit or unlimited.")
    return float(found[1]) * {"k": 1e3, "m": 1e6, "g": 1e9}[found[2]]


def check_able(remedy: str) -> None:
    """Raise an error if hosts cannot be created; `remedy` says what to do instead."""
    reason = able()
    if reason:
        raise GraceError(f"hosts joined by links of a given rate cannot be made: {reason}. {remedy}.")


def able() -> str | None:
    """Why hosts cannot be created here; None if they can."""
    if sys.platform != "linux":
        return "network namespaces exist on Linux only"
    if os.geteuid() != 0:
        return "making network namespaces needs root; run it with sudo, or in a container where you are root"
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    return f"{' and '.join(missing)} not found; install iproute2" if missing else None


class Hosts:
    """`count` hosts on one switch; a context manager."""

    def __init__(self, count: int, rate: str) -> None:
        check_able("`grace bench step` needs none")
        self.count = count
        self.rate = rate
        self.bits = check_rate(rate)
        self._prefix = f"grace-{os.getpid()}"
        self._watcher: subprocess.Popen[bytes] | None = None

    def place(self) -> partial[str]:
        """For `run_workers`: moves worker `rank` into the host of that number."""
        return partial(_enter, self._prefix)

    def __enter__(self) -> Hosts:
        _sweep()
        names = [f"{self._prefix}-switch", *(f"{self._prefix}-{i}" for i in range(self.count))]
        script = "import subprocess, sys; sys.stdin.read(); " + "".join(
            f"subprocess.run(['ip', 'netns', 'del', {name!r}], stderr=subprocess.DEVNULL); " for name in names
        )
        # Reads until this process exits or closes the pipe; its own session survives Ctrl-C and a killed parent.
        self._watcher = subprocess.Popen(
            [sys.executable, "-S", "-c", script], stdin=subprocess.PIPE, start_new_session=True
        )
        try:
            self._build()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Remove everything."""
        if self._watcher is not None and self._watcher.stdin is not None:
            self._watcher.stdin.close()
            self._watcher.wait(30)
            self._watcher = None

    def _build(self) -> None:
        switch = f"{self._prefix}-switch"
        _ip("netns", "add", switch)
        _ip("-n", switch, "link", "add", "bridge0", "type", "bridge")
        _ip("-n", switch, "link", "set", "bridge0", "up")
        for i in range(self.count):
            host, port = f"{self._prefix}-{i}", f"port{i}"
            _ip("netns", "add", host)
            _ip("-n", host, "link", "set", "lo", "up")
            # Created inside the namespaces, so that no interface appears on the machine itself.
            _ip("-n", host, "link", "add", INTERFACE, "type", "veth", "peer", "name", port, "netns", switch)
            _ip("-n", host, "addr", "add", f"10.77.0.{i + 1}/24", "dev", INTERFACE)
            _ip("-n", host, "link", "set", INTERFACE, "up")
            _ip("-n", switch, "link", "set", port, "master", "bridge0", "up")
            for space, device in ((host, INTERFACE), (switch, port)):
                self._shape(space, device)

    def _shape(self, space: str, device: str) -> None:
        if self.bits == float("inf"):
            return
        # Enough for one timer tick at the rate; otherwise the rate is not reached.
        burst = max(256 * 1024, int(self.bits / 8 / 250))
        _run("tc", "-n", space, "qdisc", "add", "dev", device, "root", "tbf", "rate", self.rate,
             "burst", str(burst), "latency", "100ms")  # fmt: skip


def _enter(prefix: str, rank: int) -> str:
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/run/netns/{prefix}-{rank}") as space:
        if libc.setns(space.fileno(), _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"cannot enter the network namespace of host {rank}")
    return INTERFACE


def _sweep() -> None:
    """Clean up after a run whose watcher was killed too."""
    for path in Path("/run/netns").glob("grace-*"):
        owner = path.name.split("-")[1]
        if owner.isdigit() and not Path(f"/proc/{owner}").exists():
            subprocess.run(["ip", "netns", "del", path.name], stderr=subprocess.DEVNULL, check=False)


def _ip(*arguments: str) -> None:
    _run("ip", *arguments)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise GraceError(f"`{' '.join(command)}` failed: {done.stderr.strip() or done.returncode}.")
