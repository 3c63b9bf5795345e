"""`grace horovod`: everything but the compiling itself, which scripts/test_horovod.sh does."""

from __future__ import annotations

import subprocess
import sys

import pytest

from grace_dl.cli import horovod_build as h
from grace_dl.cli.main import main

TORCH = h.Frameworks("3.11", "cpython-311", torch="2.13.0+cpu")
BOTH = h.Frameworks("3.11", "cpython-311", torch="2.13.0", tensorflow="2.21.0")


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("GRACE_WHEELS", str(tmp_path))
    return tmp_path


def test_the_frameworks_of_an_interpreter_are_found():
    found = h.probe(sys.executable)
    assert found.torch and found.python == "{}.{}".format(*sys.version_info[:2])


def test_an_interpreter_without_frameworks_is_told_so():
    with pytest.raises(h.BuildError, match="neither torch nor tensorflow"):
        h.probe(_bare_python())


def _bare_python() -> str:
    """The interpreter below the virtual environment, which has none of its packages."""
    return subprocess.run(
        [sys.executable, "-c", "import os, sys; print(os.path.realpath(sys.executable))"],
        capture_output=True,
        text=True,
    ).stdout.strip()


def test_every_combination_of_versions_has_its_own_place(cache, monkeypatch):
    places = {h.wheel_folder(TORCH, False), h.wheel_folder(BOTH, False), h.wheel_folder(BOTH, True)}
    monkeypatch.setenv("HOROVOD_GPU_OPERATIONS", "NCCL")
    places.add(h.wheel_folder(BOTH, True))
    assert len(places) == 4 and all(place.parent == cache for place in places)
    assert BOTH.label == "torch2.13.0.tf2.21.0" and TORCH.label == "torch2.13.0.cpu"


def test_the_compilers_stand_in_changes_what_it_must(tmp_path):
    show = f"{sys.executable} -c 'import sys; print(*sys.argv[1:])'"
    wrapper = h.write_wrapper(tmp_path, show)

    def asked(*arguments: str) -> list[str]:
        return subprocess.run([str(wrapper), *arguments], capture_output=True, text=True).stdout.split()

    assert asked("-std=c++14", "-c", "a.cc") == ["-std=c++17", "-c", "a.cc"]
    assert asked("--std=c++17", "-O3", "x/xla_mpi_ops.cc")[-1] == "-UTENSORFLOW_VERSION"


def test_missing_tools_are_named_before_anything_is_built(tmp_path):
    with pytest.raises(h.BuildError, match="apt install g\\+\\+ make cmake openmpi-bin"):
        h.check_tools(True, "g++", {"PATH": str(tmp_path)})


@pytest.mark.parametrize(
    "log, word",
    [
        ("c++: fatal error: Killed signal terminated program cc1plus", "--jobs 1"),
        ("ERROR: No matching distribution found for horovod==0.28.1", "--source"),
        ("fatal error: Python.h: No such file or directory", "python3-dev"),
        ("x.cc:3:1: error: something strange", "something strange"),
        ("nothing known", "end of the log"),
    ],
)
def test_a_failed_build_is_explained(log, word):
    assert word in h.diagnose(log)


def test_a_build_that_fails_names_the_reason_and_the_log(cache, tmp_path, monkeypatch):
    monkeypatch.setattr(h, "_pip", lambda *_: None)  # leaves this environment as it is
    source = tmp_path / "source"
    source.mkdir()
    (source / "setup.py").write_text("raise SystemExit('Python.h: No such file')")
    with pytest.raises(h.BuildError, match="python3-dev") as caught:
        h.build(sys.executable, h.probe(sys.executable), source=str(source), report=lambda line: None)
    assert "build.log" in str(caught.value)


def test_a_cached_wheel_is_not_built_again(cache, capsys):
    folder = h.wheel_folder(h.probe(sys.executable), False)
    folder.mkdir(parents=True)
    (folder / "horovod-0.28.1-cp311.whl").write_bytes(b"")
    assert main(["horovod", "build"]) == 0
    assert "already built" in capsys.readouterr().out


def test_check_without_horovod_is_an_error_in_words(monkeypatch, capsys):
    monkeypatch.setattr(h, "probe", lambda python: h.Frameworks("3", "x", torch="0"))
    monkeypatch.setattr(
        subprocess, "run", lambda *a, **k: subprocess.CompletedProcess(a, 1, "", "No module named horovod")
    )
    assert main(["horovod", "check"]) == 2
    assert "does not start" in capsys.readouterr().err
