"""A profile: what the cost model needs to know of a model and its training step."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch

from ..errors import ConfigError
from ..output_files import parse_json
from ..pipeline.bucket import fill
from ..settings import number

T = TypeVar("T")

FORMAT = 1
BUCKET_BYTES = 25 * 2**20
FIRST_BUCKET_BYTES = 2**20
"""DDP's defaults: a small first bucket lets communication start early."""
_SIDE = 1024
_LARGEST = 2**62
"""Elements of a parameter; PyTorch counts them in 64 bits."""
_YEAR = 3.2e7
_MOST = 2e12
"""Parameters of figures; more would make so many buckets that a plan takes minutes."""


class Parameter(NamedTuple):
    """A parameter, and when in the backward pass its gradient is ready."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    ready: float
    """Seconds from the start of the backward pass."""

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class Profile:
    """A training step of one worker, without communication.

    >>> profile = Profile.from_figures(parameters=25.6e6, backward=0.12)
    >>> profile.numel, len(profile.buckets())
    (25600000, 5)
    """

    model: str
    parameters: tuple[Parameter, ...]
    """In the order in which gradients become ready."""
    forward: float
    backward: float
    update: float
    """Seconds of the forward pass, the backward pass and the optimizer's step."""
    device: str = "cpu"
    origin: str = "measured"
    """How the times were obtained."""

    def __post_init__(self) -> None:
        for label in ("forward", "backward", "update"):
            number(label, getattr(self, label), "seconds of a training step", least=0, below=math.inf)
        if not self.parameters:
            raise ConfigError(f"the profile of {self.model} has no parameters; nothing would be exchanged.")
        names = [parameter.name for parameter in self.parameters]
        if len(set(names)) != len(names):
            raise ConfigError(
                f"the profile of {self.model} names a parameter twice; each must have its own name."
            )

    @property
    def numel(self) -> int:
        return sum(math.prod(parameter.shape) for parameter in self.parameters)

    @property
    def nbytes(self) -> int:
        """Bytes of all gradients."""
        return sum(parameter.nbytes for parameter in self.parameters)

    @property
    def compute(self) -> float:
        """Seconds of a step without communication."""
        return self.forward + self.backward + self.update

    def buckets(self, limit: int = BUCKET_BYTES) -> list[list[Parameter]]:
        """The buckets that DDP makes of the gradients, in the order in which they become ready."""
        first: list[Parameter] = []
        rest = list(self.parameters)
        while rest and sum(p.nbytes for p in first) < min(limit, FIRST_BUCKET_BYTES):
            if first and rest[0].dtype != first[0].dtype:
                break
            first.append(rest.pop(0))
        return [first, *fill(rest, limit, kind=lambda p: p.dtype, weigh=lambda p: p.nbytes)]

    @classmethod
    def from_figures(
        cls, *, parameters: float, backward: float, forward: float | None = None, update: float = 0.0
    ) -> Profile:
        """A profile from totals: gradients in matrices of 1024 × 1024 that become ready at a constant rate.

        `forward` is half of `backward` by default.
        """
        count = number("parameters", parameters, "elements of all gradients", least=1, most=_MOST)
        number("backward", backward, "seconds of the backward pass", least=0, below=math.inf)
        if forward is None:
            forward = backward / 2
        side = _SIDE if count <= 2e10 else 32 * _SIDE
        full, left = divmod(int(count), side * side)
        shapes: list[tuple[int, ...]] = [(side, side)] * full + ([(left,)] if left else [])
        done, made = 0, []
        for place, shape in enumerate(shapes):
            done += math.prod(shape)
            made.append(Parameter(f"w{place}", shape, torch.float32, backward * done / int(count)))
        return cls("given figures", tuple(made), forward, backward, update, origin="given")

    def with_times(
        self, *, forward: float | None = None, backward: float | None = None, update: float | None = None
    ) -> Profile:
        """The same model with other times; the moments at which gradients are ready scale with the backward pass."""
        stretch = 1.0 if backward is None or not self.backward else backward / self.backward
        return replace(
            self,
            parameters=tuple(p._replace(ready=stretch * p.ready) for p in self.parameters),
            forward=self.forward if forward is None else forward,
            backward=self.backward if backward is None else backward,
            update=self.update if update is None else update,
            origin="partly given",
        )

    # Files --------------------------------------------------------------------------------------------

    def save(self, path: Path) -> None:
        """Write the profile as JSON."""
        content = {
            "grace_profile": FORMAT,
            "model": self.model,
            "device": self.device,
            "origin": self.origin,
            **{label: getattr(self, label) for label in ("forward", "backward", "update")},
            "parameters": [
                [p.name, list(p.shape), str(p.dtype).removeprefix("torch."), p.ready] for p in self.parameters
            ],
        }
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n")
        except OSError as error:
            raise ConfigError(f"the profile cannot be written to {path}: {error.strerror}.") from error

    @classmethod
    def load(cls, path: Path) -> Profile:
        """Read a file written by `save`."""
        try:
            content = parse_json(path.read_text())
        except OSError as error:
            raise ConfigError(
                f"the profile {path} cannot be read ({error.strerror}); write one with grace.profile(model)."
            ) from error
        except (ValueError, RecursionError) as error:
            raise ConfigError(
                f"{path} is no profile: it is not JSON ({error}); write one with grace.profile(model)."
            ) from error
        if not isinstance(content, Mapping) or content.get("grace_profile") != FORMAT:
            raise ConfigError(
                f"{path} is no profile of format {FORMAT}; write one with grace.profile(model)."
            )
        try:
            return cls(
                _typed(content, "model", str, "text"),
                tuple(_parameter(entry) for entry in _typed(content, "parameters", list, "a list")),
                **{label: _seconds(label, content.get(label)) for label in ("forward", "backward", "update")},
                device=_typed(content, "device", str, "text"),
                origin=_typed(content, "origin", str, "text"),
            )
        except ConfigError as error:
            raise ConfigError(
                f"{path} is a damaged profile ({str(error).rstrip('.')}); write it anew."
            ) from error


def _typed(content: Mapping[str, Any], label: str, kind: type[T], text: str) -> T:
    value = content.get(label)
    if not isinstance(value, kind):
        raise ConfigError(f"{label}={_shown(value)} must be {text}")
    return value


def _seconds(label: str, value: Any) -> float:
    """Seconds of a file."""
    if not _is_number(value) or not 0 <= value <= _YEAR:
        raise ConfigError(f"{label}={_shown(value)} must be a number of seconds, of at most a year")
    return float(value)


def _parameter(entry: Any) -> Parameter:
    """A parameter of a file."""
    if not isinstance(entry, list) or len(entry) != 4 or not isinstance(entry[0], str):
        raise ConfigError(f"a parameter is {_shown(entry)}; it must be a list of name, shape, dtype and time")
    name, shape, kind, ready = entry
    whole_sides = isinstance(shape, list) and all(type(side) is int and side >= 0 for side in shape)
    if not whole_sides or not 1 <= math.prod(shape) <= _LARGEST:
        raise ConfigError(
            f"the shape of {_shown(name)} is {_shown(shape)}; it must be a list of whole numbers, of 1 to 2^62 elements"
        )
    dtype = getattr(torch, kind, None) if isinstance(kind, str) else None
    if not isinstance(dtype, torch.dtype) or not (dtype.is_floating_point or dtype.is_complex):
        raise ConfigError(
            f"the dtype of {_shown(name)} is {_shown(kind)}; gradients are floating point or complex"
        )
    return Parameter(name, tuple(shape), dtype, _seconds(f"the ready time of {_shown(name)}", ready))


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _shown(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:59]}…"
