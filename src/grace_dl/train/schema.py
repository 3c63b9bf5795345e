"""The settings of a run, with types and defaults: the tree `configs` that config files fill in."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from .tree import Config, Field

_DEVICE = re.compile(r"\s*(auto|cpu|gpu|cuda|\d+(\s*,\s*\d+)*)\s*", re.IGNORECASE)


LARGEST_SEED = 2**63 - 1
"""PyTorch's generators take 64 bits, and every rank adds its number."""


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _field(default: Any, what: str, fits: Callable[[Any], bool], optional: str = "") -> Any:
    """A field, typed as `Any` so that a class can declare the type of its values."""
    if not optional:
        return Field(default, what, fits)
    return Field(default, f"{what}, or {optional}", lambda value: value is None or fits(value))


def whole(default: int | None, least: int = 1) -> Any:
    optional = "None" if default is None else ""
    return _field(
        default, f"a whole number, {least} or more", lambda v: _whole(v) and bool(v >= least), optional
    )


def number(default: float | None, least: float = 0.0) -> Any:
    optional = "None" if default is None else ""
    return _field(
        default, f"a number, {least:g} or more", lambda v: _number(v) and bool(v >= least), optional
    )


def flag(default: bool | None) -> Any:
    optional = "None for automatic" if default is None else ""
    return _field(default, "True or False", lambda v: isinstance(v, bool), optional)


def text(default: str | None) -> Any:
    return _field(default, "text", lambda v: isinstance(v, str), "None" if default is None else "")


def choice(default: str, *options: str) -> Any:
    return _field(default, "one of " + ", ".join(options), lambda v: v in options)


def group(what: str) -> Any:
    return _field(
        None, f"a Config of {what}", lambda v: isinstance(v, Config) and v.target is not None, "None"
    )


def part(kind: type[Config], what: str) -> Any:
    return _field(kind, f"the settings of {what}", lambda v: isinstance(v, kind))


class DataSettings(Config):
    """`configs.data`: how batches are prepared."""

    # Threads that prepare batches ahead of training; 0 prepares each batch when it is needed.
    num_threads_per_worker: int = whole(0, least=0)


class LocalSettings(Config):
    """`configs.train.local`: local steps between exchanges, with `train.compression` as the method; see `LocalRule`."""

    # Local steps between two exchanges of a parameter.
    every: int = whole(30)
    # The outer SGD, with Nesterov momentum; 1 and 0 apply the average as it is.
    outer_lr: float = number(1.0)
    outer_momentum: float = number(0.0)
    # Parts of the model that take turns, steps that an exchange may travel, and the weight of local parameters then.
    fragments: int = whole(1)
    delay: int = whole(0, least=0)
    merge: float = number(0.0)


class TrainSettings(Config):
    """`configs.train`: how the model is trained."""

    # Length. `num_steps` ends a run early, also within an epoch.
    num_epochs: int = whole(10)
    num_steps: int | None = whole(None)
    # Samples of one rank in one backward pass, and backward passes in one step.
    batch_size: int = whole(128)
    num_batches_per_step: int = whole(1)
    # Loss and optimizer.
    criterion: Config | None = group("a loss")
    optimizer: Config = group("an optimizer")
    optimize_bn_separately: bool = flag(False)
    clip_grad_norm: float | None = number(None)
    # Memory format of images and weights; on CPUs and tensor cores, convolutions run fastest with channels last.
    channels_last: bool = flag(False)
    # Learning rate: scaled by ranks and passes, warmed up linearly, then scheduled by epochs or by steps.
    scale_lr: bool = flag(True)
    warmup_lr_epochs: float = number(0)
    scheduler: Config | None = group("a schedule")
    schedule_lr_per_epoch: bool = flag(True)
    # Synchronization of gradients.
    dgc: bool = flag(False)
    compression: Config | str | None = _field(
        None,
        "the text of a method such as topk:0.01, or a Config such as Config(DGCCompressor, ...)",
        lambda v: isinstance(v, str) or (isinstance(v, Config) and v.target is not None),
        "None",
    )
    engine: str = choice("ddp", "ddp", "reducer")
    # Local steps instead of an exchange at every step; None for none. Name a file of configs/local.
    local: LocalSettings | None = _field(
        None,
        "the settings of local steps, LocalSettings(every=30)",
        lambda v: isinstance(v, LocalSettings),
        "None",
    )
    # Evaluation, records and checkpoints.
    metric: str = text("acc/test_top1")
    topk: Sequence[int] = _field(
        [1, 5],
        "a list of whole numbers, such as [1, 5]",
        lambda v: isinstance(v, (list, tuple)) and bool(v) and all(_whole(k) and k > 0 for k in v),
    )
    evaluate_every: int = whole(1)
    log_every: int = whole(10)
    save_every_steps: int | None = whole(None)
    # At least two: when ranks are killed while they save, some hold the new checkpoint and some only the one before.
    keep: int = whole(3, least=2)
    tensorboard: bool | None = flag(None)
    save_path: str | None = text(None)


class Settings(Config):
    """The whole tree. A `TrainConfig` guarantees that `dataset`, `model` and `train.optimizer` are set."""

    _root = "configs"

    seed: int = _field(
        42, f"a whole number from 0 to {LARGEST_SEED}", lambda v: _whole(v) and 0 <= v <= LARGEST_SEED
    )
    device: str = _field(
        "auto",
        "auto, cpu, gpu, or numbers of GPUs such as 0,1",
        lambda v: isinstance(v, str) and _DEVICE.fullmatch(v) is not None,
    )
    dataset: Config = group("a data set")
    model: Config = group("a model")
    data: DataSettings = part(DataSettings, "data loading")
    train: TrainSettings = part(TrainSettings, "training")
