"""Collects the pages of the site in a folder: the repository's files with their links, and the generated pages."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from . import api_pages, command_page, method_pages
from .navigation import CHILDREN, METHODS, Navigation, toctree

LINK = re.compile(r"(\]\()([^)#\s]+)((?:#[^)\s]*)?\))")
FRONT = "README.md"


def stage(root: Path, target: Path) -> None:
    """Fill `target` with everything Sphinx reads. The layout is that of the repository, so links hold as they are."""
    shutil.rmtree(target, ignore_errors=True)
    navigation = Navigation.of(root)
    folders: set[str] = set()
    for page in [FRONT, *navigation.sources]:
        text = _linked(root, target, page, folders)
        if page == FRONT:
            _write(target / "index.md", text + navigation.trees())
        elif page == METHODS:
            _write(target / page, method_pages.overview())
        else:
            _write(target / page, text + (toctree(CHILDREN[page]) if page in CHILDREN else ""))
    for folder in sorted(folders):
        _write(target / folder / "index.md", _listing(root, target, folder))
    generated = {**method_pages.pages(root), **api_pages.pages(), "api/commands.md": command_page.page()}
    for page, text in generated.items():
        _write(target / page, text)


def _linked(root: Path, target: Path, page: str, folders: set[str]) -> str:
    """A page's text. Files it links to are copied, links to folders lead to a list of their files."""

    def follow(match: re.Match[str]) -> str:
        link = match[2]
        if "://" in link or link.startswith("mailto:"):
            return match[0]
        file = ((root / page).parent / link).resolve()
        if file.is_dir():
            folders.add(file.relative_to(root).as_posix())
            return f"{match[1]}{link.rstrip('/')}/index.md{match[3]}"
        if file == root / FRONT:
            return f"{match[1]}{link.removesuffix(FRONT)}index.md{match[3]}"
        if file.suffix != ".md":
            _copy(file, target / file.relative_to(root))
        return match[0]

    return LINK.sub(follow, (root / page).read_text("utf-8"))


def _listing(root: Path, target: Path, folder: str) -> str:
    """A page with the files of a folder, to read and to download."""
    lines = ["---", "orphan: true", "---", "", f"# {folder}", ""]
    for file in sorted((root / folder).iterdir()):
        if file.is_file():
            _copy(file, target / folder / file.name)
            lines += [f"- [{file.name}]({file.name})"]
    return "\n".join(lines) + "\n"


def _copy(file: Path, to: Path) -> None:
    to.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(file, to)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")
