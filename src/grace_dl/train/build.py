"""From the tree of settings to objects, checked before anything is trained."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ..errors import ConfigError
from .config import Config
from .datasets import Dataset
from .schedule import LearningRate, Schedule
from .world import World

NORMS = (nn.modules.batchnorm._BatchNorm, nn.LayerNorm, nn.GroupNorm)


def device_of(name: str, world: World) -> torch.device:
    """`auto`, `cpu`, `gpu` (the one of this rank's number on its machine), or a list of GPUs such as `0,2`."""
    name = name.strip().lower()
    if name == "auto":
        name = "gpu" if torch.cuda.is_available() else "cpu"
    if name == "cpu":
        return torch.device("cpu")
    if name in ("gpu", "cuda"):
        numbers = list(range(torch.cuda.device_count()))
    elif all(part.strip().isdigit() for part in name.split(",")):
        numbers = [int(part) for part in name.split(",")]
    else:
        raise ConfigError(
            f"--devices {name!r} is unknown; give auto, cpu, gpu, or numbers of GPUs such as 0,1."
        )
    if not numbers or max(numbers) >= torch.cuda.device_count():
        raise ConfigError(
            f"--devices {name!r} asks for GPUs, of which {torch.cuda.device_count()} are here; use --devices cpu."
        )
    device = torch.device("cuda", numbers[world.local_rank % len(numbers)])
    torch.cuda.set_device(device)
    return device


def require(configs: Any) -> None:
    """Refuse a tree without what every run needs."""
    for group, name, example in (
        (configs, "dataset", "configs/synthetic.py"),
        (configs, "model", "configs/cifar/resnet20.py"),
        (configs.train, "optimizer", "configs/cifar/resnet20.py"),
    ):
        if group[name] is None:
            where = "configs" if group is configs else "configs.train"
            raise ConfigError(
                f"{where}.{name} is not set; name a config file that sets it, such as {example}."
            )
    if "lr" not in configs.train.optimizer:
        raise ConfigError("configs.train.optimizer.lr is not set; give the learning rate of one rank.")
    if configs.train.dgc and configs.train.compression is None:
        raise ConfigError(
            "configs.train.dgc is True, but configs.train.compression is not set; name configs/dgc/wm5.py."
        )
    metrics = ["loss/test", *(f"acc/test_top{k}" for k in configs.train.topk)]
    if configs.train.metric not in metrics:
        raise ConfigError(
            f"configs.train.metric={configs.train.metric!r} is not measured; measured: {', '.join(metrics)}."
        )


def dataset_of(config: Config, world: World) -> Dataset:
    """The data set; the first rank of each machine goes first, so that nothing is fetched twice."""
    together = dist.is_initialized()
    if together and world.local_rank:
        dist.barrier()
    data = config()
    if together and not world.local_rank:
        dist.barrier()
    if not isinstance(data, Dataset):
        raise ConfigError(
            f"configs.dataset builds {type(data).__name__}, which is no grace_dl.train.datasets.Dataset."
        )
    return data


def optimizer_of(configs: Any, model: nn.Module) -> torch.optim.Optimizer:
    """The optimizer; without decay of normalisation layers if `optimize_bn_separately`."""
    if not configs.train.optimize_bn_separately:
        return configs.train.optimizer(model.parameters())
    norms = [p for m in model.modules() if isinstance(m, NORMS) for p in m.parameters(recurse=False)]
    known = {id(p) for p in norms}
    others = [p for p in model.parameters() if id(p) not in known]
    return configs.train.optimizer([{"params": others}, {"params": norms, "weight_decay": 0.0}])


def learning_rate_of(configs: Any, world: World, steps_per_epoch: int) -> LearningRate:
    """The rate of every step, from the settings of `configs.train`."""
    train = configs.train
    schedule = None if train.scheduler is None else train.scheduler()
    if schedule is not None and not isinstance(schedule, Schedule):
        raise ConfigError(
            f"configs.train.scheduler builds {type(schedule).__name__}; use the class of that name in grace_dl.train.schedule, which "
            "needs no state to resume."
        )
    factor = train.num_batches_per_step * world.size if train.scale_lr else 1
    return LearningRate(
        train.optimizer.lr,
        factor,
        schedule,
        train.warmup_lr_epochs,
        steps_per_epoch,
        train.schedule_lr_per_epoch,
    )
