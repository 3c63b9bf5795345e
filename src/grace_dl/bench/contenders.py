"""What accuracy studies compare: methods written as `topk:compress_ratio=0.01`, and the baselines."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import ConfigError
from ..registry import method

FLOAT32, BF16 = "float32", "bf16"
"""Plain DDP, and our bf16 method: what every other method is compared with."""

METHODS = (
    "int8",
    "topk:compress_ratio=0.01",
    # Four stages of the warm-up lie in the first epoch of CIFAR-10 on two workers.
    "dgc:compress_ratio=0.01,warmup_epochs=4,warmup_steps=100",
    "powersgd:rank=4",
    "efsignsgd",
)
"""The usual choice: one method of each family that trains with the learning rate of plain SGD."""


@dataclass(frozen=True)
class Contender:
    """A method with settings, under the name that tables show."""

    label: str
    method: str
    params: dict[str, Any] = field(default_factory=dict)

    def files(self) -> list[str]:
        """The config files to name after those of the task."""
        if self.method == FLOAT32:
            return []
        # Momentum moves into the memory, which is more than a choice of compressor.
        return ["configs/dgc/wm5.py"] if self.method == "dgc" else ["configs/grace.py"]

    def overrides(self) -> list[tuple[str, str]]:
        """Its settings, as on the command line of training."""
        if self.method == FLOAT32:
            return []
        params = dict(self.params)
        if self.method != "dgc":
            params = {"compressor": self.method, **params}
        elif "compress_ratio" in params:
            params.setdefault("warmup_coeff", None)  # stages that lead to this ratio, not to that of the file
        return [(f"train.compression.{name}", _written(value)) for name, value in params.items()]


def parse(text: str) -> tuple[str, dict[str, Any]]:
    """Name and settings of a method as it is written on the command line.

    >>> parse("topk:compress_ratio=0.01,communicator=broadcast")
    ('topk', {'compress_ratio': 0.01, 'communicator': 'broadcast'})
    """
    name, _, settings = text.partition(":")
    if name != FLOAT32:
        name = method(name).name
    elif settings:
        raise ConfigError(f"{text!r}: float32 is plain DDP and has no settings; leave out {settings!r}.")
    try:
        call = ast.parse(f"f({settings})", mode="eval").body
        assert isinstance(call, ast.Call) and not call.args
        return name, {str(keyword.arg): _value(keyword.value) for keyword in call.keywords}
    except (SyntaxError, ValueError, AssertionError):
        raise ConfigError(
            f"{text!r} is not a method with settings; write it as topk:compress_ratio=0.01 or "
            "dgc:compress_ratio=0.001,warmup_epochs=5."
        ) from None


def contenders(texts: Sequence[str] | None) -> list[Contender]:
    """The baselines and the methods asked for, each once and each with a label of its own."""
    found: list[Contender] = []
    for text in (FLOAT32, BF16, *(texts or METHODS)):
        name, params = parse(text)
        if any((c.method, c.params) == (name, params) for c in found):
            continue
        label = label_of(name, params)
        if any(c.label == label for c in found):
            label = label_of(name, params, full=True)
        found.append(Contender(label, name, params))
    return found


def label_of(name: str, params: Mapping[str, Any], full: bool = False) -> str:
    """How tables call a method; `full` names every setting.

    >>> label_of("topk", {"compress_ratio": 0.01}), label_of("powersgd", {"rank": 4})
    ('topk 1 %', 'powersgd rank 4')
    """
    label, rest = name, dict(params)
    if isinstance(rest.get("compress_ratio"), (int, float)):
        label += f" {100 * rest.pop('compress_ratio'):g} %"
    if "rank" in rest:
        label += f" rank {rest.pop('rank')}"
    if full or name not in ("dgc", "topk"):
        label += "".join(f", {key}={value}" for key, value in rest.items())
    return label


def _value(node: ast.expr) -> Any:
    return node.id if isinstance(node, ast.Name) else ast.literal_eval(node)


def _written(value: Any) -> str:
    return value if isinstance(value, str) else repr(value)
