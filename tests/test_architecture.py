"""Dependencies point downward, in every folder and module, and the guide to the architecture names all of them."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import grace_dl

PACKAGE = Path(grace_dl.__file__).parent
GUIDE = "docs/architecture.md"

LAYERS = [
    *("errors", "key", "names", "digest", "settings", "telemetry", "formatting", "output_files", "console"),
    "workers",
    *("kernels", "registry", "compressor", "methods", "memory"),
    *("transport", "pipeline", "communicator"),
    *(
        "catalog",
        "algebra",
        "saved_state",
        "routing",
        "session",
        "plan",
        "tuning",
        "handle",
        "checkpoints",
        "integrations",
    ),
    *("compat", "dist", "torch", "tensorflow"),
    *("data", "train", "configs", "bench", "report", "demonstration", "cli"),
]
"""Folders and modules of the package, bottom to top. Each may import what stands before it, and nothing else."""

DYNAMIC = {
    "kernels/__init__.py": "kernels",
    "catalog.py": "methods",
    "cli/main.py": "cli",
    "bench/remote_hosts.py": "bench",
    "bench/own_models.py": "bench",
}
"""Files that import modules by names they compute, and the part these belong to."""


def part_of(path: Path) -> str:
    relative = path.relative_to(PACKAGE)
    return relative.parts[0] if len(relative.parts) > 1 else relative.stem


FILES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


def parts_of_names() -> dict[str, str]:
    """Where the names lead that `grace_dl/__init__.py` loads on demand; the compiled module is below everything."""
    names: dict[str, str] = grace_dl._LAZY  # type: ignore[attr-defined]
    lazy = {name: module.split(".")[0] for name, module in names.items()}
    return {**dict.fromkeys(grace_dl.__all__, "algebra"), **lazy, "__version__": "", "_native": ""}


def imports(path: Path) -> Iterator[str]:
    """The parts of the package that a file imports: anywhere in it, for types as well, by statement or by text."""
    package = ["grace_dl", *path.relative_to(PACKAGE).parts[:-1]]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            targets = [alias.name.split(".") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            base = base + (node.module.split(".") if node.module else [])
            targets = [[*base, alias.name] for alias in node.names]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in LOADERS:
            targets = [imported(node, path, package)]
        else:
            continue
        for target in targets:
            if target[0] == "grace_dl":
                # The package itself offers all that `compat` and what is below it have.
                yield part_named(target[1]) if len(target) > 1 else "compat"


LOADERS = ("import_module", "__import__", "resolve_name")


def imported(call: ast.Call, path: Path, package: list[str]) -> list[str]:
    """What a call imports by text; of one that computes it, what `DYNAMIC` says."""
    argument = call.args[0]
    if isinstance(argument, ast.Constant):
        return str(argument.value).split(".")
    pieces = argument.values if isinstance(argument, ast.JoinedStr) else [argument]
    first = ast.unparse(pieces[0]).strip("{}'f")
    if first == "__package__":
        return package
    if isinstance(pieces[0], ast.Constant) and not str(pieces[0].value).startswith("grace_dl"):
        return str(pieces[0].value).split(".")
    relative = path.relative_to(PACKAGE).as_posix()
    if part_of(path) == "integrations" and relative not in DYNAMIC:
        return ["horovod"]  # patches modules of Horovod, whose names it lists
    return ["grace_dl", DYNAMIC[relative]]


def part_named(name: str) -> str:
    return name if name in LAYERS else parts_of_names().get(name, name)


def test_every_folder_and_module_has_its_layer() -> None:
    found = {part_of(path) for path in FILES}
    assert found == set(LAYERS), "place new parts in LAYERS (and in docs/architecture.md), and drop old ones"
    assert len(set(LAYERS)) == len(LAYERS)


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.relative_to(PACKAGE).as_posix())
def test_imports_point_downward(path: Path) -> None:
    part = part_of(path)
    below = {*LAYERS[: LAYERS.index(part)], part, ""}
    above = sorted({name for name in imports(path) if name not in below})
    assert not above, (
        f"{path.relative_to(PACKAGE)} imports {above}, which {'lie' if above[1:] else 'lies'} above it"
    )


def test_the_check_sees_every_kind_of_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "PACKAGE", tmp_path)
    folder = tmp_path / "memory"
    folder.mkdir()
    for line, part in {
        "from ..session import Session": "session",
        "from .. import session": "session",
        "from .. import attach": "integrations",
        "from .. import topk": "algebra",
        "from . import base": "memory",
        "from .base import Memory": "memory",
        "import grace_dl.cli.main": "cli",
        "import grace_dl as grace": "compat",
        "from grace_dl.train import engine": "train",
        "def late():\n    from ..handle import Handle": "handle",
        "if TYPE_CHECKING:\n    from ..pipeline.bucket import Bucket": "pipeline",
        "importlib.import_module('grace_dl.session')": "session",
        "importlib.import_module(f'{__package__}.base')": "memory",
    }.items():
        (folder / "file.py").write_text(line)
        assert list(imports(folder / "file.py")) == [part], line


def test_compressors_never_talk_to_the_network() -> None:
    for folder in ("compressor", "methods", "memory", "kernels"):
        for path in (PACKAGE / folder).rglob("*.py"):
            text = path.read_text()
            assert "torch.distributed" not in text, path
            assert "horovod" not in text, path


def test_nothing_is_kept_by_address() -> None:
    """`id()` of an object that is gone may be that of another, on one rank and not on the next."""
    for path in FILES:
        if part_of(path) in ("session", "handle", "pipeline", "communicator", "memory", "integrations"):
            kept = re.findall(r"\[id\(|\bid\(\w+\):", path.read_text())
            assert not kept, f"{path.name} keeps something by id()"


def test_native_sources_know_no_framework() -> None:
    native = PACKAGE.parent.parent / "native"
    for path in [*native.rglob("*.cpp"), *native.rglob("*.hpp")]:
        text = path.read_text()
        assert "torch/" not in text and "ATen" not in text, path
        if path.parent.name != "bindings":
            assert "nanobind" not in text, f"{path}: only the binding files know Python"


@pytest.mark.parametrize(
    "path",
    [path for path in FILES if part_of(path) != "kernels"],
    ids=lambda p: str(p.relative_to(PACKAGE)),
)
def test_backends_are_reached_through_the_interface_alone(path: Path) -> None:
    """Only `kernels.of`, its types, `kernels.wire` and `kernels.check` are known outside; never a backend."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level > 1 and node.module:
            first, _, rest = node.module.partition(".")
            if first == "kernels":
                names = {rest.partition(".")[0]} if rest else {alias.name for alias in node.names}
                assert not names & {"reference", "native", "triton"}, f"{path} imports a backend"


def test_memories_use_the_declared_interface_of_compressors() -> None:
    for path in (PACKAGE / "memory").glob("*.py"):
        for asked in ("getattr(compressor", "hasattr(compressor", "isinstance(compressor"):
            assert asked not in path.read_text(), path


# The guide --------------------------------------------------------------------------------------------------


def test_the_guide_lists_the_layers_in_order(root: Path) -> None:
    rows = re.findall(r"^\| `([\w/.]+)` \|", (root / GUIDE).read_text(), flags=re.MULTILINE)
    layers = [row.removesuffix("/").removesuffix(".py") for row in rows if "/" not in row.removesuffix("/")]
    assert layers == LAYERS
    for row in rows:
        exists = (PACKAGE / row).is_dir() if row.endswith("/") else (PACKAGE / row).is_file()
        assert exists, f"{GUIDE} lists {row}, which is not there"


def test_the_guide_names_every_folder(root: Path) -> None:
    named = set(re.findall(r"`([\w/.]+)/`", (root / GUIDE).read_text()))
    inner = {
        path.parent.relative_to(PACKAGE).as_posix() for path in FILES if path.parent.parent != PACKAGE.parent
    }
    # These mirror the folders of the original GRACE.
    inner -= {folder for folder in inner if folder.startswith(("dist/", "torch/", "tensorflow/"))}
    listed = subprocess.run(["git", "ls-files"], cwd=root, capture_output=True, text=True)
    if listed.returncode == 0 and listed.stdout:
        outer = {line.split("/")[0] for line in listed.stdout.splitlines() if "/" in line}
        inner |= {folder for folder in outer if not folder.startswith(".")}
    assert not inner - named, f"{GUIDE} does not name {sorted(inner - named)}"
    gone = {n for n in named if not ((PACKAGE / n).is_dir() or (root / n).is_dir())}
    assert not gone, f"{GUIDE} names {sorted(gone)}, which are not there"
