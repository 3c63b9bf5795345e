"""Links without root: a command that makes virtual hosts runs as root of its own user namespace.

    python -m grace_dl.cli.user_namespace bench link --quick

is what `run_with_links` starts below `unshare`. The machine's network stays reachable; only `/run`, which would not be
writable, is replaced by an empty folder that exists for this command alone.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from ..bench import virtual_hosts


def run_with_links(command: Callable[[], object], words: Sequence[str]) -> int:
    """Run a command that makes virtual hosts: here if this process may, otherwise `grace WORDS` in a user namespace."""
    if virtual_hosts.privileged() or virtual_hosts.able() is not None:
        command()
        return 0
    return subprocess.call(
        [*virtual_hosts.UNSHARE, sys.executable, "-m", "grace_dl.cli.user_namespace", *words]
    )


def main(words: Sequence[str]) -> None:
    """Prepare `/run`, and become the command."""
    resolver = Path("/etc/resolv.conf").resolve()
    kept = resolver.read_bytes() if resolver.is_relative_to("/run") and resolver.is_file() else None
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/run"], check=True)
    if kept is not None:  # names must still resolve: data sets are downloaded
        resolver.parent.mkdir(parents=True, exist_ok=True)
        resolver.write_bytes(kept)
    os.execv(sys.executable, [sys.executable, "-m", "grace_dl.cli", *words])


if __name__ == "__main__":
    main(sys.argv[1:])
