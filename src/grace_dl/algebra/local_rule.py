"""Local steps as a value: a training rule around a method, for command lines, configs, plans and result files."""

from __future__ import annotations

from dataclasses import dataclass, fields

from ..errors import ConfigError
from ..settings import number, whole
from .base import Method, check_method
from .named import build


@dataclass(frozen=True)
class LocalRule:
    """Train `every` steps locally, then exchange the change of the parameters by `method`; `LocalSteps` runs it.

    It is no method: it cannot be attached to gradients. `outer_lr` and `outer_momentum` (Nesterov's) are those of the outer
    SGD; with 1 and 0 the average is applied as it is. The other settings are those of `LocalSteps`.

    >>> print(LocalRule(build("int4"), every=100, outer_lr=0.7, outer_momentum=0.9))
    local(int4; every=100; outer_lr=0.7; outer_momentum=0.9)
    """

    method: Method
    every: int = 30
    outer_lr: float = 1.0
    outer_momentum: float = 0.0
    fragments: int = 1
    delay: int = 0
    merge: float = 0.0

    def __post_init__(self) -> None:
        check_method(self.method)
        check_rounds(self.every, self.fragments, self.delay, self.merge)
        number(
            "outer_lr", self.outer_lr, "the rate of the outer SGD; 1 applies the average as it is", above=0
        )
        number("outer_momentum", self.outer_momentum, "Nesterov momentum of the outer SGD", least=0, below=1)

    @property
    def plain(self) -> bool:
        """Whether the average is applied without an outer optimizer."""
        return self.outer_lr == 1 and self.outer_momentum == 0

    def __str__(self) -> str:
        given = [
            f"{f.name}={getattr(self, f.name)}"
            for f in fields(self)
            if f.name == "every" or (f.name != "method" and getattr(self, f.name) != f.default)
        ]
        return f"{NAME}({'; '.join([str(self.method), *given])})"


NAME = "local"
SETTINGS = tuple(f.name for f in fields(LocalRule) if f.name != "method")


def diloco(every: int = 30, **settings: float) -> LocalRule:
    """DiLoCo with differences in 4 bits (arXiv:2311.08105, arXiv:2501.18512).

    >>> print(diloco())
    local(int4; every=30; outer_lr=0.7; outer_momentum=0.9)
    """
    return LocalRule(build("int4"), every, **{"outer_lr": 0.7, "outer_momentum": 0.9, **settings})  # type: ignore[arg-type]


def sparseloco(every: int = 30, **settings: float) -> LocalRule:
    """SparseLoCo: the largest 64 of every 4096 elements in two bits, with a decaying residual (arXiv:2508.15706).

    >>> print(sparseloco(100))
    local(chunktopk:64,beta=0.95; every=100)
    """
    return LocalRule(build("chunktopk", beta=0.95), every, **settings)  # type: ignore[arg-type]


PUBLISHED = {"diloco": diloco, "sparseloco": sparseloco}
"""Published rules by name; the name may be followed by settings, as in `diloco:100,fragments=2`."""


def check_rounds(every: int, fragments: int, delay: int, merge: float) -> None:
    """Raise unless the settings of rounds fit together."""
    whole("every", every, "30 to 500 are usual", least=1)
    whole("delay", delay, "0 waits for the exchange", least=0)
    number("merge", merge, "0 replaces the local parameters", least=0, below=1)
    whole("fragments", fragments, "1 exchanges the whole model at once", least=1)
    if delay > every // fragments:
        raise ConfigError(
            f"delay={delay} is longer than the {every // fragments} steps between two exchanges (every={every}, "
            f"fragments={fragments}); exchanges must not overlap. Use a shorter delay or fewer fragments."
        )
