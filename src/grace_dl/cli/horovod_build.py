"""Build Horovod for the frameworks of one interpreter, and cache the wheel.

The last release of Horovod, 0.28.1, compiles with C++14, which the headers of current torch and TensorFlow reject. One
of its files, used only for XLA on GPUs, includes headers that TensorFlow no longer ships. No source is edited: a
compiler wrapper changes these arguments.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ..errors import GraceError

VERSION = "0.28.1"
BUILD_NEEDS = ("setuptools", "wheel", "packaging", "cffi", "pyyaml", "cloudpickle", "psutil")
RUN_NEEDS = ("cloudpickle", "psutil", "pyyaml", "packaging", "cffi")

Report = Callable[[str], None]

_PROBE = """
import importlib, json, sys, sysconfig
found = {"python": "%d.%d" % sys.version_info[:2], "abi": sysconfig.get_config_var("SOABI") or sys.implementation.cache_tag}
for name in ("torch", "tensorflow"):
    try:
        found[name] = importlib.import_module(name).__version__
    except ModuleNotFoundError as error:
        if error.name != name:
            found[name + "_error"] = repr(error)
    except Exception as error:
        found[name + "_error"] = repr(error)
print("\\n" + json.dumps(found))
"""


class BuildError(GraceError, RuntimeError):
    """Horovod could not be built or installed; the message says why and what to do."""


@dataclass(frozen=True)
class Frameworks:
    """The versions of an interpreter that a Horovod binary depends on."""

    python: str
    abi: str
    torch: str | None = None
    tensorflow: str | None = None

    @property
    def label(self) -> str:
        """Marks the wheel: `torch2.13.0.tf2.21.0`."""
        parts = [
            f"torch{self.torch}" if self.torch else "",
            f"tf{self.tensorflow}" if self.tensorflow else "",
        ]
        return re.sub(r"[^a-z0-9.]+", ".", ".".join(p for p in parts if p).lower())

    def __str__(self) -> str:
        return (
            f"Python {self.python}, torch {self.torch or 'absent'}, TensorFlow {self.tensorflow or 'absent'}"
        )


def probe(python: str) -> Frameworks:
    """Import the frameworks with `python` and return their versions."""
    if not python:
        raise BuildError(
            "--python '' is not an interpreter; name one, such as .venv/bin/python, or leave it out."
        )
    quiet = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run([python, "-c", _PROBE], capture_output=True, text=True, env=quiet)
    try:
        found = json.loads(done.stdout.strip().splitlines()[-1])
    except (IndexError, ValueError):
        said = (done.stderr.strip() or f"it ended with exit code {done.returncode}").splitlines()[-1]
        raise BuildError(
            f"--python {python} does not answer as a Python interpreter ({said}); name one that can import torch "
            "or tensorflow, such as .venv/bin/python."
        ) from None
    broken = [f"{name}: {error}" for name, error in found.items() if name.endswith("_error")]
    if broken:
        raise BuildError(
            f"a framework is installed in {python} but does not import ({'; '.join(broken)}); repair or remove it first."
        )
    frameworks = Frameworks(**found)
    if not frameworks.label:
        raise BuildError(
            f"{python} has neither torch nor tensorflow, and Horovod is compiled against them; install one first."
        )
    return frameworks


def cache_folder() -> Path:
    """The folder of wheels: `GRACE_WHEELS`, or `grace_dl/wheels` in the user's cache folder."""
    given = os.environ.get("GRACE_WHEELS")
    if given:
        return Path(given).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "grace_dl" / "wheels"


def wheel_folder(frameworks: Frameworks, mpi: bool) -> Path:
    """The cache folder for one combination of versions and build options."""
    options = {
        name: value
        for name, value in sorted(os.environ.items())
        if name.startswith(("HOROVOD_GPU", "HOROVOD_CUDA", "HOROVOD_NCCL", "HOROVOD_ROCM", "HOROVOD_CPU"))
    }
    extra = "".join(
        f"-{name.removeprefix('HOROVOD_').lower()}.{Path(value).name}" for name, value in options.items()
    )
    name = f"horovod{VERSION}-{frameworks.abi}-{platform.machine()}-{frameworks.label}-{'mpi' if mpi else 'gloo'}{extra}"
    return cache_folder() / re.sub(r"[^A-Za-z0-9._-]+", "_", name)


def cached(folder: Path) -> Path | None:
    """The wheel in a cache folder, if there is one."""
    return next(iter(sorted(folder.glob("horovod-*.whl"))), None)


def write_wrapper(folder: Path, compiler: str) -> Path:
    """The compiler wrapper: always C++17, and the XLA file compiled as empty."""
    path = folder / "c++"
    path.write_text(
        f"#!{sys.executable}\n"
        "import os, sys\n"
        'arguments = ["-std=c++17" if a.startswith("-std=") else a for a in sys.argv[1:]]\n'
        'if any(a.endswith("xla_mpi_ops.cc") for a in arguments):\n'
        '    arguments.append("-UTENSORFLOW_VERSION")\n'
        f"compiler = {shlex.split(compiler)!r}\n"
        "os.execvp(compiler[0], compiler + arguments)\n"
    )
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def environment(frameworks: Frameworks, mpi: bool, wrapper: Path, jobs: int) -> dict[str, str]:
    """The environment of Horovod's build; variables set by the user are kept."""
    chosen = {
        "HOROVOD_WITH_PYTORCH" if frameworks.torch else "HOROVOD_WITHOUT_PYTORCH": "1",
        "HOROVOD_WITH_TENSORFLOW" if frameworks.tensorflow else "HOROVOD_WITHOUT_TENSORFLOW": "1",
        "HOROVOD_WITHOUT_MXNET": "1",
        "HOROVOD_WITH_GLOO": "1",
        "HOROVOD_WITH_MPI" if mpi else "HOROVOD_WITHOUT_MPI": "1",
        "HOROVOD_LOCAL_VERSION": frameworks.label,
        "CMAKE_POLICY_VERSION_MINIMUM": "3.5",
        "MAKEFLAGS": f"-j{jobs}",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    return {**chosen, **os.environ, "CXX": str(wrapper)}


def check_tools(mpi: bool, compiler: str, env: Mapping[str, str] = os.environ) -> None:
    """Check the build requirements before the long build starts."""
    wanted = [
        (shlex.split(compiler)[0], "a C++ compiler", "g++"),
        ("make", "make", "make"),
        ("cmake", "CMake", "cmake"),
    ]
    if mpi:
        wanted.append(("mpicxx", "MPI with its headers", "openmpi-bin libopenmpi-dev"))
    missing = [
        (what, package) for tool, what, package in wanted if shutil.which(tool, path=env.get("PATH")) is None
    ]
    if missing:
        raise BuildError(
            f"the build needs {', '.join(what for what, _ in missing)}, which is not installed or not on PATH. "
            f"Debian, Ubuntu: apt install {' '.join(package for _, package in missing)}"
            + ("" if mpi else "; CMake is also on PyPI: pip install cmake")
            + "."
        )


_DIAGNOSES = (
    (r"Killed signal terminated program|cc1plus.*[Kk]illed", "the compiler was killed: most likely too little memory; use --jobs 1."),
    (r"No space left on device", "the disk is full; TMPDIR may name another one."),
    (r"No matching distribution found for horovod|Could not find a version that satisfies.*horovod", "the package index does not offer Horovod's source; check the connection, or give --source with a downloaded archive."),
    (r"Network is unreachable|Temporary failure in name resolution|Max retries exceeded", "the package index could not be reached; check the connection or the proxy, or give --source with a downloaded archive."),
    (r"Compatibility with CMake < 3\.5 has been removed", "this CMake is too new; set CMAKE_POLICY_VERSION_MINIMUM=3.5."),
    (r"No module named 'pkg_resources'", "setuptools is too new for Horovod's build; pip install 'setuptools<80'."),
    (r"Python\.h: No such file", "Python's headers are missing; Debian, Ubuntu: apt install python3-dev."),
    (r"Could NOT find MPI|mpi\.h: No such file", "MPI's headers are missing; Debian, Ubuntu: apt install openmpi-bin libopenmpi-dev."),
    (r"You need C\+\+17|C\+\+17 or later|requires? C\+\+20|C\+\+20 or later", "the compiler or a framework's headers want another C++ standard than 17; use GCC 9 or newer, and versions of the frameworks that INSTALLING.md names."),
    (r"undefined reference|undefined symbol", "linking failed: torch and TensorFlow come from builds with different C++ ABIs; install both from PyPI."),
)  # fmt: skip


def diagnose(log: str) -> str:
    """The reason of a failed build, from its output."""
    for pattern, reason in _DIAGNOSES:
        if re.search(pattern, log):
            return reason
    errors = [line.strip() for line in log.splitlines() if re.search(r"\berror:|CMake Error", line)]
    return f"the first error was: {errors[0]}" if errors else "no known cause; the end of the log follows."


def build(
    python: str,
    frameworks: Frameworks,
    *,
    mpi: bool = False,
    jobs: int = 2,
    source: str | None = None,
    report: Report = print,
) -> Path:
    """Compile a wheel into the cache; returns its path."""
    compiler = os.environ.get("CXX", "g++")
    env_path = {"PATH": os.pathsep.join([str(Path(python).parent), os.environ.get("PATH", os.defpath)])}
    check_tools(mpi, compiler, env_path)
    folder = wheel_folder(frameworks, mpi)
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "build.log"
    with tempfile.TemporaryDirectory(prefix="grace-horovod-") as scratch:
        wrapper = write_wrapper(Path(scratch), compiler)
        env = {**environment(frameworks, mpi, wrapper, jobs), **env_path}
        report("installing what the build needs (setuptools, wheel, ...)")
        _pip(python, ["install", "--quiet", *BUILD_NEEDS], env)
        if source is None:
            source = _download(python, Path(scratch), env, report)
        out = Path(scratch) / "wheel"
        command = [
            python,
            "-m",
            "pip",
            "wheel",
            "--verbose",
            "--no-deps",
            "--no-build-isolation",
            "--no-cache-dir",
        ]
        command += ["--wheel-dir", str(out), source]
        code, text = _watch(command, env, log, report)
        wheel = cached(out) if out.is_dir() else None
        if code or wheel is None:
            tail = "\n".join(text.splitlines()[-15:])
            raise BuildError(f"Horovod did not build: {diagnose(text)}\nThe whole log: {log}\n{tail}")
        part = folder / f".{wheel.name}"
        shutil.copyfile(wheel, part)
        part.replace(folder / wheel.name)
        return folder / wheel.name


def _download(python: str, folder: Path, env: Mapping[str, str], report: Report) -> str:
    report(f"fetching the source of Horovod {VERSION}")
    # pip compares the version with the requested one, so the label must not be in it yet.
    plain = {name: value for name, value in env.items() if name != "HOROVOD_LOCAL_VERSION"}
    arguments = ["download", "--quiet", "--no-deps", "--no-build-isolation", "--no-binary", "horovod"]
    try:
        _pip(python, [*arguments, "--dest", str(folder), f"horovod=={VERSION}"], plain)
    except BuildError as error:
        raise BuildError(f"the source of Horovod could not be had: {diagnose(str(error))}\n{error}") from None
    return str(next(folder.glob("horovod-*.tar.gz")))


def _watch(command: list[str], env: Mapping[str, str], log: Path, report: Report) -> tuple[int, str]:
    """Run a build; report each percentage once, with the elapsed time."""
    started, lines, shown = time.monotonic(), [], -1
    with (
        log.open("w") as file,
        subprocess.Popen(
            command,
            env=dict(env),
            text=True,
            errors="replace",
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        ) as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            file.write(line)
            lines.append(line)
            step = re.search(r"\[\s*(\d+)%\] (Building \w+ object \S*?([^/\s]+)\.o|Built target (\S+))", line)
            percent = int(step[1]) if step else shown
            if percent > shown and step is not None:
                shown = percent
                what = step[3] or step[4]
                report(f"{percent:3d} %  {time.monotonic() - started:5.0f} s  {what}")
    return process.returncode, "".join(lines)


def _pip(python: str, arguments: list[str], env: Mapping[str, str] | None = None) -> None:
    command = [python, "-m", "pip", *arguments, "--disable-pip-version-check"]
    done = subprocess.run(command, capture_output=True, text=True, env=None if env is None else dict(env))
    if done.returncode:
        raise BuildError(f"{shlex.join(command)} failed:\n{(done.stderr or done.stdout).strip()[-2000:]}")


def install(python: str, wheel: Path) -> None:
    """Install a wheel without touching the frameworks it was built for."""
    _pip(python, ["install", "--quiet", *RUN_NEEDS])
    _pip(python, ["install", "--quiet", "--no-deps", "--force-reinstall", str(wheel)])


def verify(python: str, frameworks: Frameworks) -> str:
    """Initialise Horovod in a single process, once per framework; returns what was checked."""
    checked = []
    for name, there in (("torch", frameworks.torch), ("tensorflow", frameworks.tensorflow)):
        if not there:
            continue
        code = f"import horovod.{name} as hvd; hvd.init(); assert hvd.size() == 1; hvd.shutdown()"
        env = {k: v for k, v in os.environ.items() if not k.startswith("HOROVOD_")}
        env["TF_CPP_MIN_LOG_LEVEL"] = "3"
        try:
            done = subprocess.run([python, "-c", code], capture_output=True, text=True, env=env, timeout=300)
        except subprocess.TimeoutExpired:
            raise BuildError(f"horovod.{name} did not initialise within 300 s.") from None
        if "No module named 'horovod'" in done.stderr:
            raise BuildError(f"Horovod is not installed in {python}; run `grace horovod install`.")
        if done.returncode:
            raise BuildError(
                f"horovod.{name} is installed but does not start; was {name} changed since the wheel was built? "
                f"Rebuild with --rebuild.\n{done.stderr.strip()[-2000:]}"
            )
        checked.append(f"horovod.{name}")
    return " and ".join(checked)
