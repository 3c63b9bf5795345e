"""Finding config files, and running them on a new tree of settings."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from contextvars import ContextVar
from difflib import get_close_matches
from pathlib import Path

from ..errors import ConfigError
from .schema import Settings

PACKAGE = Path(__file__).parent.parent
"""Its folder `configs` is searched after the current directory, so that the shipped files work from anywhere."""

_tree: ContextVar[Settings] = ContextVar("_tree")
"""The tree that running config files fill in."""


def locate(name: str) -> Path:
    """The file of that name: relative to the current directory, or shipped."""
    given = Path(name)
    for candidate in (given, PACKAGE / given, PACKAGE / "configs" / given):
        if candidate.is_file():
            return candidate.absolute()
    shipped = sorted(str(path.relative_to(PACKAGE)) for path in (PACKAGE / "configs").rglob("*.py"))
    shipped = [path for path in shipped if not path.endswith("__init__.py")]
    near = get_close_matches(name, shipped, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise ConfigError(f"no config file {name!r}: {hint}Shipped: {', '.join(shipped)}.")


def chain(path: Path) -> list[Path]:
    """The file, preceded by the `__init__.py` of each folder of its tree, from the top down."""
    found = [path]
    folder = path.parent
    while (folder / "__init__.py").is_file() and _is_configs(folder):
        if folder / "__init__.py" != path:
            found.insert(0, folder / "__init__.py")
        if folder.name == "configs":
            break
        folder = folder.parent
    return found


def _is_configs(folder: Path) -> bool:
    """Whether a folder belongs to a tree of config files: it is named `configs`, or lies below one that is."""
    while (folder / "__init__.py").is_file():
        if folder.name == "configs":
            return True
        folder = folder.parent
    return False


def load(names: Sequence[str]) -> Settings:
    """Run config files in order on a new tree, each file and each shared `__init__.py` once."""
    tree = Settings()
    token = _tree.set(tree)
    done: set[Path] = set()
    try:
        for name in names:
            for path in chain(locate(name)):
                if path not in done:
                    _run(path)
                    done.add(path)
    finally:
        _tree.reset(token)
    return tree


def current() -> Settings:
    """The tree that `from grace_dl.train import configs` gives a config file."""
    tree = _tree.get(None)
    if tree is None:
        raise ConfigError(
            "grace_dl.train.configs exists only while a config file runs; in a program, use TrainConfig.from_files([...], "
            "overrides={'train.num_epochs': 5})."
        )
    return tree


def _run(path: Path) -> None:
    try:
        code = compile(path.read_text("utf-8"), str(path), "exec")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise ConfigError(
            f"{path}, line {line}: byte 0x{error.object[error.start]:02x} is not UTF-8 text; a config file is written in Python."
        ) from error
    except (SyntaxError, ValueError) as error:
        known: int | None = getattr(error, "lineno", None)  # none for a null byte
        place = f"{path}, line {known}" if known else f"{path}"
        raise ConfigError(f"{place}: {error.args[0]}; a config file is written in Python.") from error
    try:
        exec(code, {"__name__": f"config:{path.stem}", "__file__": str(path)})
    except (Exception, SystemExit) as error:
        lines = [
            frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)
        ]
        said = str(error) if isinstance(error, ConfigError) else f"{type(error).__name__}: {error}"
        place = f"{path}, line {lines[-1]}" if lines else f"{path}"
        raise ConfigError(f"{place}: {said}") from error


def label(names: Sequence[str]) -> str:
    """The name of a run, made of the names of its config files.

    >>> label(["configs/cifar/resnet20.py", "configs/dgc/wm5.py", "configs/dgc/fp16.py"])
    'cifar.resnet20+dgc.wm5+dgc.fp16'
    """
    found = []
    for name in names:
        parts = list(Path(name).with_suffix("").parts)
        if "configs" in parts:
            parts = parts[parts.index("configs") + 1 :]
        found.append(".".join(part for part in parts if part not in ("/", "..", ".")))
    return "+".join(found)
