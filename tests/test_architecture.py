"""Dependencies point downward: front doors, pipeline, communicators, memories, compressors, kernels."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import grace_dl

PACKAGE = Path(grace_dl.__file__).parent

BASE = {"errors", "key", "registry", "settings"}
ALLOWED = {
    # A kernel knows only flat buffers.
    "kernels": {"errors"},
    "compressor": BASE | {"kernels"},
    "memory": BASE | {"compressor", "kernels"},
    "transport": {"errors"},
    "telemetry": {"errors"},
    "pipeline": BASE | {"compressor", "memory", "transport", "telemetry", "kernels"},
    "communicator": BASE | {"compressor", "memory", "transport", "pipeline", "telemetry", "kernels"},
    "data": {"errors"},
    "workers": {"errors"},
    "errors": set(),
    "settings": {"errors"},
    "key": set(),
    "words": set(),
}
"""What each part may import of the others. Parts not named are front doors and may import anything below them."""

FRONT_DOORS = {"dist", "torch", "tensorflow", "acpsgd", "dgc", "helper", "cli", "demo", "train", "configs"}


def part_of(path: Path) -> str:
    relative = path.relative_to(PACKAGE)
    return relative.parts[0] if len(relative.parts) > 1 else relative.stem


def imports(path: Path) -> set[str]:
    """The parts of grace_dl that a file imports when it runs; imports for type checkers alone do not count."""
    module = ["grace_dl", *path.relative_to(PACKAGE).with_suffix("").parts]
    found: set[str] = set()

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for other in node.orelse:
                visit(other)
            return
        if isinstance(node, ast.Import):
            targets = [alias.name.split(".") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = module[: len(module) - node.level] if node.level else []
            base = base + (node.module.split(".") if node.module else [])
            targets = [[*base, alias.name] for alias in node.names]
        else:
            targets = []
        found.update(t[1] for t in targets if t[0] == "grace_dl" and len(t) > 1)
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(path.read_text()))
    return found


FILES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_point_downward(path: Path) -> None:
    part = part_of(path)
    if part not in ALLOWED:
        return
    modules = {part_of(file) for file in FILES}
    used = (imports(path) & modules) - {part}
    # `communicator.attach` opens the front door its caller asked for, inside the function.
    if part == "communicator" and path.name == "base.py":
        used -= {"dist"}
    assert used <= ALLOWED[part], f"{path.name} imports {sorted(used - ALLOWED[part])}, which lie above it"


def test_nothing_below_imports_a_front_door_at_the_top_level() -> None:
    for path in FILES:
        if part_of(path) not in {*ALLOWED, "registry", "_alias"}:
            continue
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ImportFrom) and node.level:
                first = (node.module or node.names[0].name).split(".")[0]
                assert first not in FRONT_DOORS, f"{path} imports {first}"


def test_compressors_never_talk_to_the_network() -> None:
    for path in (PACKAGE / "compressor").glob("*.py"):
        text = path.read_text()
        assert "torch.distributed" not in text, path
        assert "horovod" not in text, path


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
