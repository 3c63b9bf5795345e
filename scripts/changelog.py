"""The rules of CHANGELOG.md, and the notes of a release.

    python scripts/changelog.py check          # are the headings right, and is the package's version a valid next one?
    python scripts/changelog.py notes 0.1.0    # print the section of a version

The first section is `## Unreleased`. Sections of releases follow, newest first: `## 0.2.0 (2026-12-01)`.
"""

from __future__ import annotations

import datetime
import itertools
import re
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
HEADING = re.compile(r"^## (.*)$", re.MULTILINE)
RELEASE = re.compile(r"(\d+)\.(\d+)\.(\d+) \((\d{4}-\d{2}-\d{2})\)")
VERSION = re.compile(r'^__version__ = "(\d+\.\d+\.\d+)"$', re.MULTILINE)
UNRELEASED = "Unreleased"


class Release(NamedTuple):
    """A section of the changelog."""

    version: tuple[int, ...]
    date: datetime.date


def releases(text: str) -> list[Release]:
    """The releases of a changelog, newest first; raises `ValueError` if a rule is broken.

    >>> releases("## Unreleased\\n## 0.2.0 (2026-12-01)\\n## 0.1.0 (2026-11-01)")[0].version
    (0, 2, 0)
    >>> releases("## Unreleased\\n## 0.1 (2026-11-01)")
    Traceback (most recent call last):
    ValueError: heading '0.1 (2026-11-01)' must be a version and a date: ## 0.2.0 (2026-12-01)
    """
    headings = HEADING.findall(text)
    if not headings or headings[0] != UNRELEASED:
        raise ValueError(f"the first heading must be '## {UNRELEASED}', not {headings[:1]}")
    found = []
    for heading in headings[1:]:
        match = RELEASE.fullmatch(heading)
        if match is None:
            raise ValueError(f"heading {heading!r} must be a version and a date: ## 0.2.0 (2026-12-01)")
        found.append(Release(tuple(map(int, match.groups()[:3])), datetime.date.fromisoformat(match[4])))
    for newer, older in itertools.pairwise(found):
        if newer.version <= older.version or newer.date < older.date:
            raise ValueError(f"releases must be listed newest first: {newer} stands above {older}")
    return found


def notes(text: str, version: str) -> str:
    """The section of a version, without its heading.

    >>> notes("## Unreleased\\n\\n## 0.1.0 (2026-11-01)\\n\\n- First.\\n", "0.1.0")
    '- First.'
    """
    parts = HEADING.split(text)
    for heading, body in zip(parts[1::2], parts[2::2]):
        if heading == version or heading.startswith(f"{version} ("):
            return body.strip()
    raise ValueError(f"CHANGELOG.md has no section for {version}")


def package_version(root: Path = ROOT) -> str:
    """The version, from the only place where it is written."""
    match = VERSION.search((root / "src" / "grace_dl" / "__init__.py").read_text("utf-8"))
    if match is None:
        raise ValueError('src/grace_dl/__init__.py has no line __version__ = "X.Y.Z"')
    return match[1]


def check(text: str, version: str) -> None:
    """Raise `ValueError` unless the headings are right and the version is the latest release or a later one."""
    listed = releases(text)
    own = tuple(map(int, version.split(".")))
    if listed and own < listed[0].version:
        raise ValueError(f"version {version} is older than the latest release in CHANGELOG.md")


def main(arguments: list[str]) -> int:
    """Run a command; errors are one line."""
    text = (ROOT / "CHANGELOG.md").read_text("utf-8")
    try:
        if arguments == ["check"]:
            check(text, package_version())
            print(package_version())
        elif len(arguments) == 2 and arguments[0] == "notes":
            print(notes(text, arguments[1]))
        else:
            raise ValueError("usage: changelog.py check | notes VERSION")
    except ValueError as error:
        print(f"changelog.py: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
