"""Virtual hosts connected by links of a given rate, built on one machine from network namespaces and `tc tbf`.

Each host is a network namespace with one interface, connected to the others by a bridge in its own namespace. Both ends
of every link are limited to the rate. The machine's real interfaces, addresses and routes are not touched. A watcher
process removes the namespaces when this process ends, even if it is killed. Making them takes root, of the machine or of a
user namespace, which any user may make where the kernel allows it.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from types import TracebackType

from ..errors import ConfigError, GraceError
from ..formatting import parse_rate

LOOPBACK = "loopback"
"""The rate that stands for no link at all: workers on this machine."""
MOST = 254
"""Hosts that have an address in one network."""
INTERFACE = "grace0"
UNSHARE = ("unshare", "--user", "--map-root-user", "--mount")
"""Starts a command as root of a new user namespace."""
_CAPABILITIES = 1 << 21 | 1 << 12
"""CAP_SYS_ADMIN and CAP_NET_ADMIN."""
_CLONE_NEWNET = 0x40000000
UNLIMITED_BITS = 1e15
"""Represents infinity in result files, since JSON has none."""
_NAMES = Path("/run/netns")


def recorded_bits(rate: str) -> float:
    """The rate as result files record it. Places without a limit (loopback, hosts reached by ssh) count as unlimited.

    >>> recorded_bits("1gbit"), recorded_bits("loopback")
    (1000000000.0, 1000000000000000.0)
    """
    return parse_rate(rate) if rate.endswith("bit") else UNLIMITED_BITS


def check_able(remedy: str) -> None:
    """Raise an error if hosts cannot be created; `remedy` says what to do instead."""
    reason = able()
    if reason:
        raise GraceError(f"hosts joined by links of a given rate cannot be made: {reason}. {remedy}.")


def with_links(rates: Iterable[str]) -> list[str]:
    """The rates that need links, all of them checked."""
    linked = [rate for rate in rates if rate != LOOPBACK]
    for rate in linked:
        parse_rate(rate)
    return linked


def able() -> str | None:
    """Why hosts cannot be created here, by this process or in a user namespace; None if they can."""
    if sys.platform != "linux":
        return "network namespaces exist on Linux only"
    missing = [tool for tool in ("ip", "tc", "unshare") if shutil.which(tool) is None]
    if missing:
        return f"{' and '.join(missing)} not found; install iproute2 and util-linux"
    if privileged():
        return None
    probe = subprocess.run([*UNSHARE, "true"], capture_output=True, text=True, check=False)
    if probe.returncode:
        reason = probe.stderr.strip() or f"exit code {probe.returncode}"
        return f"you are not root, and the kernel does not allow user namespaces ({reason}); try sudo"
    return None


def privileged() -> bool:
    """Whether this process itself may make network namespaces."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return False
    held = next((int(line.split()[1], 16) for line in lines if line.startswith("CapEff")), 0)
    return held & _CAPABILITIES == _CAPABILITIES


def check_workers(workers: Iterable[int], per_host: int) -> None:
    """Raise unless every number of workers fills whole hosts."""
    for count in workers:
        if count % per_host:
            raise ConfigError(f"--workers {count} is not a multiple of --per-host {per_host}; change either.")


def network(count: int, rate: str, per_host: int = 1) -> AbstractContextManager[Callable[[int], str] | None]:
    """A context with `count` hosts joined by links of a rate; its value places workers, for `run_workers`."""
    return nullcontext() if rate == LOOPBACK else Hosts(count, rate, per_host)


class Hosts(AbstractContextManager[Callable[[int], str]]):
    """`count` hosts on one switch; a context manager whose value moves worker `rank` into its host.

    The first `per_host` workers are on the first host, and so on.
    """

    def __init__(self, count: int, rate: str, per_host: int = 1) -> None:
        if count > MOST:
            raise ConfigError(f"{count} hosts joined by links are too many; at most {MOST} can be made.")
        check_able("`grace bench step` needs none")
        if not privileged():
            raise GraceError(
                "this process may not make network namespaces; the command `grace` may, as it starts a user namespace."
            )
        self.count = count
        self.rate = rate
        self.per_host = per_host
        self.bits = parse_rate(rate)
        self._prefix = f"grace-{os.getpid()}"
        self._watcher: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Callable[[int], str]:
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
        return partial(_enter, self._prefix, self.per_host)

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
        _add(switch)
        _ip("-n", switch, "link", "add", "bridge0", "type", "bridge")
        _ip("-n", switch, "link", "set", "bridge0", "up")
        for i in range(self.count):
            host, port = f"{self._prefix}-{i}", f"port{i}"
            _add(host)
            _ip("-n", host, "link", "set", "lo", "up")
            # Created inside the namespaces, so that no interface appears on the machine itself.
            _ip("-n", host, "link", "add", INTERFACE, "type", "veth", "peer", "name", port, "netns", switch)
            _ip("-n", host, "addr", "add", f"10.77.0.{i + 1}/24", "dev", INTERFACE)
            _ip("-n", host, "link", "set", INTERFACE, "up")
            _ip("-n", switch, "link", "set", port, "master", "bridge0", "up")
        if self.bits != float("inf"):
            self.set_rate(self.rate)

    def set_rate(self, rate: str) -> None:
        """Limit both ends of every link to another rate; also while workers exchange."""
        self.rate, self.bits = rate, parse_rate(rate)
        # Enough for one timer tick at the rate; otherwise the rate is not reached.
        burst = max(256 * 1024, int(self.bits / 8 / 250))
        for i in range(self.count):
            for space, device in ((f"{self._prefix}-{i}", INTERFACE), (f"{self._prefix}-switch", f"port{i}")):
                _run("tc", "-n", space, "qdisc", "replace", "dev", device, "root", "tbf", "rate", rate,
                     "burst", str(burst), "latency", "100ms")  # fmt: skip


def _add(name: str) -> None:
    """Make a namespace with the name that `ip -n` knows it by. (`ip netns add` needs root of the machine.)"""
    file = _NAMES / name
    _NAMES.mkdir(parents=True, exist_ok=True)
    file.touch()
    _run("unshare", f"--net={file}", "true")


def _enter(prefix: str, per_host: int, rank: int) -> str:
    libc = ctypes.CDLL(None, use_errno=True)
    with open(_NAMES / f"{prefix}-{rank // per_host}") as space:
        if libc.setns(space.fileno(), _CLONE_NEWNET) != 0:
            raise OSError(
                ctypes.get_errno(), f"cannot enter the network namespace of host {rank // per_host}"
            )
    os.environ["LOCAL_WORLD_SIZE"] = str(per_host)  # as a launcher on that host would
    return INTERFACE


def _sweep() -> None:
    """Clean up after a run whose watcher was killed too."""
    for path in _NAMES.glob("grace-*"):
        owner = path.name.split("-")[1]
        if owner.isdigit() and not Path(f"/proc/{owner}").exists():
            subprocess.run(["ip", "netns", "del", path.name], stderr=subprocess.DEVNULL, check=False)


def _ip(*arguments: str) -> None:
    _run("ip", *arguments)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise GraceError(f"`{' '.join(command)}` failed: {done.stderr.strip() or done.returncode}.")
