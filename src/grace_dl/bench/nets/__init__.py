"""Networks for benchmarks, in addition to those of `grace_dl.train.models`."""

from __future__ import annotations

from . import bert
from .bert import Bert
from .densenet import densenet201
from .inception import inception_v4

__all__ = ["Bert", "bert", "densenet201", "inception_v4"]
