"""Training from config files, on the command line and from Python.

    python train.py --configs configs/cifar/resnet20.py configs/dgc/wm5.py

    from grace_dl.train import TrainConfig, Trainer

    config = TrainConfig.from_files(["configs/cifar/resnet20.py", "configs/dgc/wm5.py"], overrides={"train.num_epochs": 2})
    result = Trainer(config).run()

A config file is Python that fills in the tree `configs`, which is a new one for each `TrainConfig`:

    from grace_dl.train import Config, configs
    from grace_dl.train.models import resnet20

    configs.model = Config(resnet20, num_classes=10)
    configs.train.num_epochs = 200

Importing this package imports no framework.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .config import TrainConfig
from .files import current as _current_tree
from .trainer import Trainer, TrainResult
from .tree import Config, Later, later

if TYPE_CHECKING:
    configs: Any
    """The tree of the config file that imports it; see `Settings` in schema.py."""

__all__ = ["Config", "Later", "TrainConfig", "TrainResult", "Trainer", "later"]


def __getattr__(name: str) -> Any:
    if name == "configs":
        return _current_tree()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
