"""The pages of the API reference: lists of names, which Sphinx fills in from signatures and docstrings."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import grace_dl
from grace_dl import catalog, errors
from grace_dl.algebra.named import OPTIONS

from .navigation import toctree

PAGES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "attaching": (
        "Attaching and handles",
        "Compress the gradients of a model or an optimizer, and what the returned handle offers.",
        (
            "grace_dl.attach",
            "grace_dl.manual",
            "grace_dl.Handle",
            "grace_dl.handle.ManualHandle",
            "grace_dl.telemetry.Stats",
            "grace_dl.LocalSteps",
            "grace_dl.OneBitAdam",
            "grace_dl.ZeroOneAdam",
            "grace_dl.simulated",
        ),
    ),
    "methods": (
        "Methods as values",
        "Every method has a constructor, on [its own page](../docs/methods.md); these combine methods and read text forms.",
        (
            "grace_dl.Method",
            "grace_dl.parse",
            "grace_dl.by_parameter",
            "grace_dl.schedule",
            "grace_dl.hierarchical",
            "grace_dl.auto",
            "grace_dl.custom",
        ),
    ),
    "checkpoints": (
        "Checkpoints",
        "Save and restore a handle's state on all ranks; see [checkpoints](../docs/checkpoints.md).",
        ("grace_dl.save", "grace_dl.load", "grace_dl.stateful"),
    ),
    "extending": (
        "Extending",
        "The base classes for your own methods; [IMPLEMENTING](../IMPLEMENTING.md) explains them with examples.",
        ("grace_dl.register", "grace_dl.Compressor", "grace_dl.Memory", "grace_dl.Communicator"),
    ),
    "integrations": (
        "Trainers",
        "Adapters for [Lightning](../docs/lightning.md), [Accelerate and Trainer](../docs/accelerate.md) and "
        "[Ray Train](../docs/ray.md).",
        (
            "grace_dl.integrations.lightning.GraceCallback",
            "grace_dl.integrations.transformers.GraceCallback",
            "grace_dl.integrations.accelerate.attach",
            "grace_dl.integrations.ray.attach",
        ),
    ),
    "planning": (
        "Planning",
        "The profile of a model for `grace plan`; see [planning](../docs/planning.md).",
        ("grace_dl.profile", "grace_dl.plan.recorder.Recorder"),
    ),
    "training": (
        "Training from config files",
        "What `grace train` runs, from Python; see [DGC](../docs/dgc.md).",
        ("grace_dl.train.TrainConfig", "grace_dl.train.Trainer", "grace_dl.train.TrainResult"),
    ),
    "compatibility": (
        "Compatibility",
        "Interfaces of the original GRACE and of ACP-SGD; see [compatibility](../docs/compatibility.md).",
        (
            "grace_dl.grace_from_params",
            "acpsgd.DistributedOptimizer",
            "acpsgd.broadcast_parameters",
            "acpsgd.broadcast_optimizer_state",
            "acpsgd.allreduce",
        ),
    ),
    "errors": (
        "Errors",
        "Every error of GRACE is a `GraceError`; its message gives the value, the reason and the remedy.",
        (
            "grace_dl.GraceError",
            *(
                f"grace_dl.errors.{name}"
                for name, kind in vars(errors).items()
                if isinstance(kind, type)
                and issubclass(kind, errors.GraceError)
                and kind is not errors.GraceError
            ),
        ),
    ),
}
"""Pages by file name: title, introduction, and the names described there."""


def pages() -> dict[str, str]:
    """Every page of the reference, by path."""
    found = {f"api/{name}.md": _page(*PAGES[name]) for name in PAGES}
    described = {entry for _, _, names in PAGES.values() for entry in names}
    missing = tuple(
        f"grace_dl.{name}"
        for name in grace_dl.__all__
        if name not in catalog.builtin_names()
        and not name.startswith("_")
        and f"grace_dl.{name}" not in described
    )
    if missing:
        found["api/more.md"] = _page("More", "Further names of the package.", missing)
    options = ", ".join(f"`{option.name}`" for option in OPTIONS)
    lines = [
        "# Python",
        "",
        "`import grace_dl as grace` gives every name on these pages that begins with `grace_dl`, and the constructors of all",
        f"[methods](../docs/methods.md), which also take {options}. Names are loaded on first use.",
        "",
        *(
            f"- [{_title(path, text)}]({path.removeprefix('api/')}): {_names(text)}"
            for path, text in found.items()
        ),
        "",
    ]
    return {"api/index.md": "\n".join(lines) + toctree(list(found)), **found}


def _title(path: str, text: str) -> str:
    return text.partition("\n")[0].removeprefix("# ")


def _names(text: str) -> str:
    entries = [line.split(":: ")[1] for line in text.splitlines() if line.startswith(".. auto")]
    return ", ".join(f"`{entry.rpartition('.')[2]}`" for entry in entries)


def _page(title: str, introduction: str, names: tuple[str, ...]) -> str:
    lines = [f"# {title}", "", introduction, "", "```{eval-rst}"]
    for name in names:
        lines += [f".. auto{_kind(name)}:: {name}", *_options(name), ""]
    return "\n".join([*lines, "```"]) + "\n"


def _kind(name: str) -> str:
    if name.startswith("grace_dl.integrations."):  # Their packages need not be installed; see conf.py.
        return "class" if name.rpartition(".")[2][0].isupper() else "function"
    found = _object(name)
    if inspect.isclass(found):
        return "exception" if issubclass(found, BaseException) else "class"
    return "function"


def _options(name: str) -> list[str]:
    if _kind(name) == "function":
        return []
    plain = not name.startswith("grace_dl.integrations.") and _object(name).__bases__ == (object,)
    inheritance = [] if plain else ["   :show-inheritance:"]
    return ["   :members:", "   :member-order: bysource", *inheritance]


def _object(name: str) -> Any:
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)
