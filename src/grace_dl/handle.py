"""The handle that `attach` returns, for every kind of target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, NoReturn, SupportsIndex, TypeVar

from torch import Tensor

from .algebra.base import Method
from .algebra.named import build
from .algebra.text import CarriesMethod, as_method
from .errors import ConfigError
from .session import Session
from .telemetry import Stats

H = TypeVar("H", bound="Handle")


class Handle:
    """A method attached to a model or an optimizer; owns all state of the method.

    You need not keep a reference: compression continues for the lifetime of its target. A `with` block closes it.
    """

    def __init__(self, session: Session) -> None:
        self._session: Session | None = session
        self._stats = session.stats

    @property
    def session(self) -> Session:
        """The method's state and its exchange."""
        if self._session is None:
            raise ConfigError("this handle is closed; attach the method anew.")
        return self._session

    @property
    def method(self) -> Method:
        """The method in use."""
        return self.session.method

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._session is None

    def stats(self) -> Stats:
        """Bytes, collectives and seconds of this rank since `attach`; also available after `close`."""
        return self._stats.copy()

    @property
    def settled(self) -> bool:
        """Whether the method `auto` has made its choice, until it looks again; True for every other method."""
        return self.session.tuner is None or self.session.tuner.settled

    def explain(self) -> str:
        """What is in use and why; of interest for the method `auto`, which says what it measured and chose."""
        if self.session.tuner is None:
            return f"{self.method} is in use because it was attached; only auto chooses by itself."
        return self.session.tuner.explain()

    def switch(self, method: Method | str | CarriesMethod) -> None:
        """Use another method from the next step on. All ranks must do so between the same two steps.

        The residual of the current method is added to the next gradient, so nothing is lost.
        """
        chosen = as_method(method)
        self._check_idle("switch")
        if chosen != self.method:
            self.session.switch(chosen)
            self._switched()

    def detach(self) -> None:
        """Average gradients uncompressed from the next step on; the residual is added to the next gradient."""
        self.switch(build("none"))

    def state_dict(self) -> dict[str, Any]:
        """All state of this rank: residuals, momenta, factors and step counters. Ranks differ, so every rank saves its own."""
        self._check_idle("save")
        return self.session.state_dict()

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Restore the `state_dict` of this rank; that of another rank or method is rejected, and nothing changes.

        Pass a list with the states of all ranks to continue on a different number of ranks: residuals are converted so that
        their contribution to the average is conserved, momenta are averaged, and step counters continue.
        """
        self._check_idle("load")
        self.session.load_state_dict(state, self._parameter_sizes())

    def _check_idle(self, what: str) -> None:
        if self._busy():
            raise ConfigError(
                f"a step is under way; {what} between optimizer.step() and the next backward()."
            )

    def close(self) -> None:
        """Release the target, which then behaves as before `attach`, and drop all state, including residuals."""
        if self._session is not None:
            self._release()
            session, self._session = self._session, None
            session.close()

    def __enter__(self: H) -> H:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {'closed' if self.closed else self.method}>"

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise ConfigError(
            f"{type(self).__name__} cannot be copied or pickled: a handle belongs to its target and to this process; save its "
            "state_dict(), and do not keep it as an attribute of what you copy."
        )

    # Overridden by targets ----------------------------------------------------------------------------

    def _busy(self) -> bool:
        """Whether a step is in progress."""
        return False

    def _parameter_sizes(self) -> Mapping[str, int] | None:
        """The parameters of the target, with their numbers of elements; None if it is not known which will come."""
        return None

    def _switched(self) -> None:
        """Called after a switch to another method."""

    def _release(self) -> None:
        """Undo the changes of `attach` to the target."""


class ManualHandle(Handle):
    """A handle without a target, for hand-written loops.

    >>> import grace_dl as grace
    >>> import torch
    >>> handle = grace.manual(grace.topk(0.5, dense_below=0))
    >>> handle.step(torch.tensor([1.0, 2.0, 3.0, 4.0]), "weight")
    tensor([0., 0., 3., 4.])
    """

    def step(self, tensor: Tensor, name: str) -> Tensor:
        """Exchange one tensor with all ranks; returns the result, of the same shape and dtype."""
        if not isinstance(tensor, Tensor) or not isinstance(name, str):
            raise ConfigError(
                f"step() takes a tensor and its name, not {type(tensor).__name__} and {type(name).__name__}; the name identifies "
                "the tensor's state."
            )
        return self.session.step(tensor, name)
