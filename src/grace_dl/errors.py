"""The exceptions GRACE raises; every message gives the value, the reason and the remedy."""

from __future__ import annotations


class GraceError(Exception):
    """Base of every error GRACE raises."""


class ConfigError(GraceError, ValueError):
    """A setting is wrong. Raised when an object is built, before anything is changed."""


class UnsupportedError(GraceError, TypeError):
    """The input cannot be compressed (a sparse gradient, an integer tensor, ...)."""


class LayoutError(GraceError, RuntimeError):
    """Ranks disagree on what is exchanged: different parameters, buckets or methods."""


class PayloadError(GraceError, ValueError):
    """Bytes received from a peer do not decode: wrong size, index out of range, invalid code."""


class PeerError(GraceError, RuntimeError):
    """Another rank failed or disappeared during the exchange."""


class StateError(GraceError, ValueError):
    """A state dict does not match the object it is loaded into."""


class DivergedError(GraceError, ArithmeticError):
    """Training has diverged: losses or gradients are no longer finite, on every rank."""


class MissingExtraError(GraceError, ImportError):
    """An optional dependency is not installed; the message names the `pip install` to run."""
