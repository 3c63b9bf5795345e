"""Every public name of the original systems is here and takes the calls it took, or is listed with a reason why not."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
from pathlib import Path
from typing import Any

import pytest

ORIGINALS = json.loads((Path(__file__).parent / "originals.json").read_text())

HOROVOD = "Horovod's own functions, patched when grace_dl.torch or grace_dl.tensorflow is imported; tests/hvd runs them"
LIBRARY = "calls a CUDA library that is not part of this project"
GRAPH = "a helper of the original's own TensorFlow compressors, which run on PyTorch's kernels here"
HANDLE = "an optimizer's handle compresses and exchanges; DGCCompressor holds settings"

REJECTED = {
    "horovod.torch": HOROVOD,
    "horovod.tensorflow": HOROVOD,
    "horovod.keras": HOROVOD,
    "horovod.tensorflow.keras": HOROVOD,
    "grace_dl.dist.compressor.topk.rdxtopk_cuda": LIBRARY,
    "grace_dl.dist.compressor.topk.cupy_topk": LIBRARY,
    "grace_dl.tensorflow.compressor.packing": GRAPH,
    "grace_dl.tensorflow.compressor.topk.sparsify": GRAPH,
    "grace_dl.tensorflow.compressor.topk.desparsify": GRAPH,
    "grace_dl.tensorflow.compressor.randomk.sparsify": GRAPH,
    "grace_dl.tensorflow.compressor.randomk.desparsify": GRAPH,
    "grace_dl.tensorflow.compressor.adapsparse.AdapSparseCompressor.": "rejected by name: it ran nowhere",
    "grace_dl.dist.communicator.all_to_all.AllToAll.compress_allgather": "the second phase belongs to the exchange",
    "dgc.compression.DGCCompressor.": HANDLE,
    "dgc.memory.Memory.": HANDLE,
    "dgc.memory.DGCSGDMemory.compensate": HANDLE,
    "dgc.memory.DGCSGDMemory.update": HANDLE,
}
"""Modules, names and methods that are not provided, with the reason; a dot at the end means all methods of a class."""

DGC_METHODS = ("initialize", "warmup_compress_ratio")
"""Methods of `DGCCompressor` that exist."""


def reason(path: str) -> str | None:
    return next(
        (why for prefix, why in REJECTED.items() if path == prefix or path.startswith(prefix + ".")), None
    )


def method_rejected(path: str, method: str) -> bool:
    if path == "dgc.compression.DGCCompressor":
        return method not in DGC_METHODS
    return f"{path}." in REJECTED or f"{path}.{method}" in REJECTED


NAMES = {
    f"{module}.{name}": (module, name, record)
    for modules in ORIGINALS["names"].values()
    for module, names in modules.items()
    for name, record in names.items()
    if reason(f"{module}.{name}") is None
}


def arguments(signature: str) -> tuple[list[str], int]:
    """Names of the arguments, and how many of them are required."""
    (function,) = ast.parse(f"def f{signature}: ...").body
    assert isinstance(function, ast.FunctionDef)
    names = [argument.arg for argument in function.args.args]
    return names, len(names) - len(function.args.defaults)


@pytest.mark.parametrize("path", NAMES)
def test_the_name_is_here_and_takes_its_calls(path: str) -> None:
    module, name, record = NAMES[path]
    found = getattr(importlib.import_module(module), name)
    if record["kind"] == "constant" or "signature" not in record:
        return
    names, required = arguments(record["signature"])
    signature = inspect.signature(found)
    for count in range(required, len(names) + 1):
        signature.bind(*names[:count])
    signature.bind(**dict.fromkeys(names))


@pytest.mark.parametrize("path", [path for path, (_, _, record) in NAMES.items() if record.get("methods")])
def test_the_methods_take_their_calls(path: str) -> None:
    module, name, record = NAMES[path]
    cls = getattr(importlib.import_module(module), name)
    for method, signature in record["methods"].items():
        if method_rejected(path, method):
            continue
        function = inspect.getattr_static(cls, method)
        static = isinstance(function, staticmethod)
        names, required = arguments(signature.replace("*args, **kwargs", ""))
        for count in range(required, len(names) + 1):
            inspect.signature(getattr(cls, method)).bind(*(() if static else (None,)), *names[:count])


@pytest.mark.parametrize("path", [path for path, (_, _, record) in NAMES.items() if record.get("abstract")])
def test_abstract_classes_cannot_be_used_by_themselves(path: str) -> None:
    module, name, record = NAMES[path]
    cls: Any = getattr(importlib.import_module(module), name)
    with pytest.raises(TypeError):
        type("Incomplete", (cls,), {})(*[None] * arguments(record["signature"])[1])


def test_rejections_are_of_names_that_exist() -> None:
    known = {f"{module}.{name}" for of in ORIGINALS["names"].values() for module in of for name in of[module]}
    known |= {module for of in ORIGINALS["names"].values() for module in of}
    for path in REJECTED:
        whole = path.removesuffix(".")
        assert whole in known or whole.rpartition(".")[0] in known, path


@pytest.mark.parametrize("framework", ["dist", "torch", "tensorflow"])
@pytest.mark.parametrize(
    "compressor",
    sorted(
        {c for f in ("dist", "torch", "tensorflow") for c in ORIGINALS["grace_from_params"][f]["compressors"]}
    ),
)
def test_the_helper_knows_every_method_with_its_defaults(framework: str, compressor: str) -> None:
    table = ORIGINALS["grace_from_params"][framework]["compressors"]
    if compressor not in table:
        return
    helper = importlib.import_module(f"grace_dl.{framework}.helper").grace_from_params
    settings = {k: v for k, v in table[compressor]["settings"].items() if k != "momentum_factor"}
    grc = helper({"compressor": compressor})
    assert grc.method == helper({"compressor": compressor, **settings}).method
    # One dictionary for all methods: keys of others are ignored.
    everything = {k: v for c in table.values() for k, v in c["settings"].items() if k != "momentum_factor"}
    assert helper({"compressor": compressor, **everything}).method == grc.method
    for memory in ("none", None):
        assert helper({"compressor": compressor, "memory": memory, "world_size": 4}).world_size == 4
