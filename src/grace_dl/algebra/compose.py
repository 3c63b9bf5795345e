"""Compositions of methods: by parameter and by training step."""

from __future__ import annotations

import fnmatch
import itertools
from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from ..errors import ConfigError
from ..names import canonical
from ..settings import whole
from .auto import as_part
from .base import ByName, Composition, Method, Single, at


@dataclass(frozen=True, repr=False)
class ByParameter(ByName):
    """Different methods for different parameters, chosen by name."""

    rules: tuple[tuple[str, Method], ...]
    """Patterns with their methods; the first match wins."""
    default: Method

    def method_of(self, name: str) -> Method:
        # Names are canonical; a pattern may have been written for those of a wrapped model.
        matching = (
            method
            for pattern, method in self.rules
            if fnmatch.fnmatchcase(name, pattern) or fnmatch.fnmatchcase(name, canonical(pattern))
        )
        return next(matching, self.default)

    @property
    def methods(self) -> tuple[Method, ...]:
        return (*(method for _, method in self.rules), self.default)

    def __str__(self) -> str:
        return f"by_parameter({'; '.join([*(f'{p}={m}' for p, m in self.rules), f'default={self.default}'])})"

    def __repr__(self) -> str:
        return f"grace.by_parameter({dict(self.rules)!r}, default={self.default!r})"


@dataclass(frozen=True, repr=False)
class Schedule(Composition):
    """Different methods at different steps."""

    stages: tuple[tuple[int, Method], ...]
    """First steps with their methods; the first is 0."""

    def resolve(self, name: str, step: int) -> Single:
        return at(self.stages, step).resolve(name, step)

    def stage(self, step: int) -> Hashable:
        return sum(first <= step for first, _ in self.stages), at(self.stages, step).stage(step)

    @property
    def methods(self) -> tuple[Method, ...]:
        return tuple(method for _, method in self.stages)

    def __str__(self) -> str:
        return f"schedule({'; '.join(f'{step}={method}' for step, method in self.stages)})"

    def __repr__(self) -> str:
        return f"grace.schedule({', '.join(map(repr, self.stages))})"


_RESERVED = set("=;()'\"")
"""Characters reserved by the text form."""


def by_parameter(rules: Mapping[str, Method], *, default: Method) -> Method:
    """Different methods for different parameters.

    `rules` maps shell-style patterns of parameter names to methods; the first match wins. `default` applies to
    all other parameters.

    >>> import grace_dl as grace
    >>> method = grace.by_parameter({"*.bias": grace.none()}, default=grace.topk(0.01))
    >>> method.resolve("layer.bias", step=0)
    grace.none()
    """
    if not isinstance(rules, Mapping) or not all(isinstance(pattern, str) and pattern for pattern in rules):
        raise ConfigError(
            f"rules={rules!r} must map patterns of parameter names to methods, as {{'*.bias': none()}}."
        )
    for pattern in rules:
        if pattern != pattern.strip() or _RESERVED & set(pattern) or pattern.count("[") != pattern.count("]"):
            raise ConfigError(
                f"pattern {pattern!r} cannot be written in the text form of a method: leave out '=', ';', '(', ')', quotes, "
                "spaces at its ends and unpaired '[' or ']'."
            )
    return ByParameter(
        tuple((p, as_part(m, "by_parameter()")) for p, m in rules.items()), as_part(default, "by_parameter()")
    )


def schedule(*stages: tuple[int, Method]) -> Method:
    """Different methods at different steps of training.

    Each stage is a pair of its first step, counted from 0, and its method. Nothing is lost between stages: the residual
    of a method is added to the next gradient.

    >>> import grace_dl as grace
    >>> warmed = grace.schedule((0, grace.none()), (500, grace.topk(0.01)))
    >>> warmed.resolve("layer.weight", step=500)
    grace.topk(ratio=0.01)
    """
    for stage in stages:
        if not (isinstance(stage, tuple) and len(stage) == 2):
            raise ConfigError(
                f"stage {stage!r} must be a pair of a step and a method, as in (500, grace.topk(0.01))."
            )
    steps = [whole("step", step, "the first step of a stage, counted from 0", least=0) for step, _ in stages]
    if not steps or steps[0] != 0 or any(a >= b for a, b in itertools.pairwise(steps)):
        raise ConfigError(f"stages begin at steps {steps}; they must begin at 0 and increase.")
    return Schedule(tuple((step, as_part(method, "schedule()")) for step, method in stages))
