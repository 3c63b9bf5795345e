"""The workflow files run the same commands as a developer does."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent
FILES = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def load(path: Path) -> dict[str, Any]:
    content = yaml.safe_load(path.read_text())
    content["on"] = content.pop(True)  # YAML 1.1 reads the key `on` as true
    return dict(content)


def commands(workflow: dict[str, Any]) -> Iterator[str]:
    for job in workflow["jobs"].values():
        yield from (step["run"] for step in job["steps"] if "run" in step)


def test_ci_runs_the_same_command_as_everyone() -> None:
    workflow = load(ROOT / ".github" / "workflows" / "ci.yml")
    runs = list(commands(workflow))
    assert runs[-1] == ".ci/run"
    assert not [line for line in runs if re.search(r"pytest|ruff|mypy|test\.sh", line)], (
        "checks belong to .ci/run"
    )
    assert (ROOT / ".ci" / "run").read_text().rstrip().endswith("exec ./test.sh")
    assert "pull_request" in workflow["on"] and workflow["on"]["push"]["branches"] == ["main"]


def test_release_builds_wheels_sdist_and_site() -> None:
    workflow = load(ROOT / ".github" / "workflows" / "release.yml")
    assert workflow["on"]["push"]["tags"] == ["v*"]
    runs = "\n".join(commands(workflow))
    for command in ("cibuildwheel==", "build --sdist", "scripts/build_site.sh", "scripts/changelog.py check"):
        assert command in runs
    settings = (ROOT / "pyproject.toml").read_text()
    oldest = re.search(r'requires-python = ">=3\.(\d+)"', settings)
    assert oldest is not None and f"cp3{oldest[1]}-*" in settings.partition("[tool.cibuildwheel]")[2]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_scripts_exist_and_permissions_are_small(path: Path) -> None:
    workflow = load(path)
    assert workflow["permissions"] == {"contents": "read"}
    for line in commands(workflow):
        for script in re.findall(r"(?:^|[\s(])((?:\.ci|scripts)/[\w./]+)", line):
            assert (ROOT / script).is_file()
            assert script.endswith(".py") or os.access(ROOT / script, os.X_OK), f"{script} is not executable"
