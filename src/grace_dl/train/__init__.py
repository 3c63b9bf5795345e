"""Training driven by config files: `python train.py --configs configs/cifar/resnet20.py configs/dgc/wm5.py`.

A config file is Python that fills in the one tree `configs`:

    from grace_dl.train import Config, configs
    from grace_dl.train.models import resnet20

    configs.model = Config(resnet20, num_classes=10)
    configs.train.num_epochs = 200

Importing this package imports no framework.
"""

from __future__ import annotations

from .config import Config, Later, later
from .schema import configs

__all__ = ["Config", "Later", "configs", "later"]
