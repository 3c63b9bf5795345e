"""Everything the documents show as Python runs, and every link between them leads somewhere."""

from __future__ import annotations

import doctest
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import grace_dl
from grace_dl.errors import MissingExtraError
from launcher_environment import as_torchrun

ROOT = Path(__file__).resolve().parent.parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
PLAIN = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)[^)]*\)")

TRAINERS = re.compile(r"^(?:import|from) (?:lightning|transformers|accelerate|ray)\b", re.MULTILINE)
LAUNCHER = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def blocks(page: Path) -> list[str]:
    return [match.group(1) for match in PLAIN.finditer(page.read_text())]


WITH_CODE = [page for page in PAGES if blocks(page)]


@as_torchrun
def run_page(rank: int, world: int, page: str, folder: str) -> list[str]:
    """Run a page's blocks one after another in one namespace, as a reader would; returns its names."""
    os.chdir(folder)
    namespace: dict[str, object] = {"__name__": "document"}
    for place, code in enumerate(blocks(Path(page))):
        exec(compile(code, f"{Path(page).name}, block {place + 1}", "exec"), namespace)
    return sorted(namespace)


@pytest.mark.parametrize("page", WITH_CODE, ids=lambda p: str(p.relative_to(ROOT)))
def test_code_in_documents_runs(page: Path, launch, tmp_path: Path) -> None:
    # On two ranks, since most of it exchanges gradients; a registered example must not leak, hence a fresh group.
    launch(run_page, 2, str(page), str(tmp_path), timeout=120)


ALONE = """
import os, re, sys
from pathlib import Path
import torch
torch.set_num_threads(1)
failed = []
for page in map(Path, sys.argv[1:]):
    child = os.fork()
    if child == 0:
        names = {"__name__": "__main__"}
        for place, code in enumerate(re.findall(r"^```python\\n(.*?)^```", page.read_text(), re.S | re.M), 1):
            exec(compile(code, f"{page.name}, block {place}", "exec"), names)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        failed.append(page.name)
sys.exit(f"failed: {failed}" if failed else 0)
"""


def test_code_in_documents_runs_in_one_process(tmp_path: Path) -> None:
    """As a reader runs it with `python`: no launcher, no variables of one. (Pages about a trainer need its package.)"""
    pages = [page for page in WITH_CODE if not TRAINERS.search("".join(blocks(page)))]
    assert {page.name for page in pages} >= {"README.md", "TRAINING.md", "IMPLEMENTING.md", "dgc.md"}
    alone = {name: value for name, value in os.environ.items() if name not in LAUNCHER}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", ALONE, *map(str, pages)],
        cwd=tmp_path,
        env=alone,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_between_documents_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(page.read_text()):
        if "://" not in target and not target.startswith("mailto:"):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def modules() -> list[str]:
    """Every module of the package, found by its file: collecting must not import engines or run configurations."""
    package = Path(grace_dl.__file__).parent
    names = []
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).with_suffix("").parts
        # Configurations are scripts that a training run executes in its own order, not modules to import.
        if "configs" not in parts and parts[-1] != "__main__":
            names.append(".".join(["grace_dl", *(part for part in parts if part != "__init__")]))
    return names


def load(name: str) -> ModuleType | None:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        # A part for an engine that is not installed; its own tests import it where the engine is.
        missing = (error.name or "").partition(".")[0]
        if isinstance(error, MissingExtraError) or missing in ("horovod", "tensorflow", "keras", "triton"):
            return None
        raise


@pytest.mark.parametrize("name", modules())
def test_examples_in_docstrings(name: str) -> None:
    module = load(name)
    if module is not None:
        result = doctest.testmod(module, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
        assert result.failed == 0, f"{result.failed} of {result.attempted} examples fail"


def test_the_guides_people_know_exist() -> None:
    for name in ("README", "INSTALLING", "IMPLEMENTING", "TRAINING", "CONTRIBUTING", "CHANGELOG"):
        assert (ROOT / f"{name}.md").stat().st_size > 500


def test_readme_has_exactly_two_commands_to_start() -> None:
    first = re.search(r"```sh\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert first is not None
    commands = [line for line in first.group(1).splitlines() if line.strip()]
    assert [line.split()[0] for line in commands] == ["./demo.sh", "./test.sh"]
    for name in ("demo.sh", "test.sh", ".ci/run"):
        assert os.access(ROOT / name, os.X_OK)


def test_tables_show_their_result_files() -> None:
    """Tables of figures on the page of benchmarks are written from the published files, so they cannot be out of date."""
    checked = subprocess.run(
        [sys.executable, "benchmarks/tables.py", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stderr
