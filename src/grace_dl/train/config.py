"""The description of a run: settings from config files and overrides, output folder, and whether it only evaluates."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..errors import ConfigError
from . import files, overrides
from .schema import Settings

RUNS = "runs"


@dataclass(frozen=True)
class TrainConfig:
    """A checked, read-only description of a run, for `Trainer(config).run()`.

    Each object has its own tree of settings. Pickling stores the sources, and unpickling runs the files again.

    >>> config = TrainConfig.from_files(["configs/synthetic.py"], overrides={"train.num_epochs": 2}, suffix=".short")
    >>> config.settings.train.num_epochs, str(config.folder)
    (2, 'runs/synthetic.short')
    >>> config.with_overrides({"seed": 7}).settings.seed
    7
    """

    files: tuple[str, ...]
    overrides: Mapping[str, Any] = field(default_factory=dict)
    suffix: str = ""
    evaluate_only: bool = False
    settings: Settings = field(init=False, repr=False, compare=False)

    @classmethod
    def from_files(
        cls,
        files: Sequence[str | os.PathLike[str]],
        *,
        overrides: Mapping[str, Any] | None = None,
        folder: str | os.PathLike[str] | None = None,
        suffix: str = "",
        device: str | None = None,
        evaluate_only: bool = False,
    ) -> TrainConfig:
        """Run config files in order, then apply the overrides; invalid names and values raise `ConfigError`.

        overrides: values by path, such as `{"train.num_epochs": 2, "model": Config(MyModel)}`.
        folder: where the run writes; by default `runs/<config files><suffix>`.
        device: `auto`, `cpu`, `gpu`, or numbers of GPUs such as `0,1`; by default the `device` of the files.
        evaluate_only: evaluate the best checkpoint in the folder instead of training.
        """
        if folder is not None and suffix:
            raise ConfigError(
                f"folder={str(folder)!r} and suffix={suffix!r} are both given; give one of them."
            )
        if Path(suffix).name != suffix and suffix:
            raise ConfigError(
                f"--suffix {suffix!r} must not contain slashes, as it ends the name of the run's folder; to choose the folder, "
                "set configs.train.save_path."
            )
        changed = dict(overrides or {})
        if folder is not None:
            changed["train.save_path"] = os.fspath(folder)
        if device is not None:
            changed["device"] = device
        return cls(tuple(os.fspath(name) for name in files), changed, suffix, evaluate_only)

    def __post_init__(self) -> None:
        # Later changes to the caller's objects must not change this config.
        object.__setattr__(self, "overrides", copy.deepcopy(dict(self.overrides)))
        settings = files.load(self.files)
        overrides.apply(settings, self.overrides)
        settings.resolve()
        check(settings)
        if "\0" in (settings.train.save_path or "") + self.suffix:
            raise ConfigError(
                f"configs.train.save_path={settings.train.save_path!r} and suffix {self.suffix!r} name the run's folder, "
                "which cannot contain a null character; leave it out."
            )
        settings.freeze()
        object.__setattr__(self, "settings", settings)

    def __reduce__(self) -> tuple[Any, ...]:
        return TrainConfig, (self.files, self.overrides, self.suffix, self.evaluate_only)

    def with_overrides(self, more: Mapping[str, Any]) -> TrainConfig:
        """The same run with further overrides."""
        return replace(self, overrides={**self.overrides, **more})

    @property
    def folder(self) -> Path:
        """The folder for records and checkpoints, whatever the number of ranks."""
        saved = self.settings.train.save_path
        return Path(saved or f"{RUNS}/{files.label(self.files) or 'run'}{self.suffix}")


def check(settings: Settings) -> None:
    """Reject a tree that lacks what every run needs, or whose parts cannot be built."""
    from .build import schedule_of
    from .gradients import compression_of
    from .local import rule_of

    train = settings.train
    for path, value, example in (
        ("dataset", settings.dataset, "configs/synthetic.py"),
        ("model", settings.model, "configs/cifar/resnet20.py"),
        ("train.optimizer", train.optimizer, "configs/cifar/resnet20.py"),
    ):
        if value is None:
            raise ConfigError(
                f"configs.{path} is not set; name a config file that sets it, such as {example}."
            )
    if "lr" not in train.optimizer:
        raise ConfigError("configs.train.optimizer.lr is not set; give the learning rate of one rank.")
    if train.dgc and train.compression is None:
        raise ConfigError(
            "configs.train.dgc is True, but configs.train.compression is not set; name configs/dgc/wm5.py."
        )
    metrics = ["loss/test", *(f"acc/test_top{k}" for k in train.topk)]
    if train.metric not in metrics:
        raise ConfigError(
            f"configs.train.metric={train.metric!r} is not measured; measured: {', '.join(metrics)}."
        )
    schedule_of(train)
    compression_of(train.compression)
    rule_of(train)
