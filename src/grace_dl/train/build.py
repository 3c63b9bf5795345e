"""Objects built from settings."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from ..errors import ConfigError
from .datasets import Dataset
from .schedule import LearningRate, Schedule
from .schema import TrainSettings
from .tree import Config
from .world import World

NORMS = (nn.modules.batchnorm._BatchNorm, nn.LayerNorm, nn.GroupNorm)


def device_of(name: str, world: World) -> torch.device:
    """The device of this rank for `auto`, `cpu`, `gpu` or a list of GPUs such as `0,2`."""
    name = name.strip().lower()
    if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    every = range(torch.cuda.device_count())
    numbers = list(every) if name in ("auto", "gpu", "cuda") else [int(part) for part in name.split(",")]
    if not numbers or max(numbers) >= len(every):
        raise ConfigError(
            f"device {name!r} asks for GPUs, but this machine has {len(every)}; use cpu, with --devices cpu on the command line."
        )
    device = torch.device("cuda", numbers[world.local_rank % len(numbers)])
    torch.cuda.set_device(device)
    return device


def dataset_of(config: Config, world: World) -> Dataset:
    """The data set. The first rank of each machine loads it before the others, so that nothing is downloaded twice."""
    together = dist.is_initialized()
    if together and world.local_rank:
        dist.barrier()
    data = config()
    if together and not world.local_rank:
        dist.barrier()
    if not isinstance(data, Dataset):
        raise ConfigError(
            f"configs.dataset builds {type(data).__name__}, not a grace_dl.train.datasets.Dataset."
        )
    return data


def model_of(config: Config) -> nn.Module:
    """The model; one with parameters of no elements, which a setting of 0 makes, is rejected."""
    model: nn.Module = config()
    for name, parameter in model.named_parameters():
        if parameter.numel() == 0:
            raise ConfigError(
                f"configs.model has a parameter without elements ({name!r}, of shape {tuple(parameter.shape)}); change its settings."
            )
    return model


def criterion_of(train: TrainSettings) -> nn.Module:
    """The loss; cross entropy if none is set."""
    return nn.CrossEntropyLoss() if train.criterion is None else train.criterion()


def optimizer_of(train: TrainSettings, model: nn.Module) -> torch.optim.Optimizer:
    """The optimizer; without weight decay of normalization layers if `optimize_bn_separately`."""
    if not train.optimize_bn_separately:
        return train.optimizer(model.parameters())
    norms = [p for m in model.modules() if isinstance(m, NORMS) for p in m.parameters(recurse=False)]
    known = {id(p) for p in norms}
    others = [p for p in model.parameters() if id(p) not in known]
    return train.optimizer([{"params": others}, {"params": norms, "weight_decay": 0.0}])


def schedule_of(train: TrainSettings) -> Schedule | None:
    """The learning rate's schedule, if any."""
    schedule = None if train.scheduler is None else train.scheduler()
    if schedule is not None and not isinstance(schedule, Schedule):
        raise ConfigError(
            f"configs.train.scheduler builds {type(schedule).__name__}; use the class of that name in grace_dl.train.schedule, which "
            "needs no state to resume."
        )
    return schedule


def learning_rate_of(train: TrainSettings, world: World, steps_per_epoch: int) -> LearningRate:
    """The learning rate as a function of the step."""
    return LearningRate(
        train.optimizer.lr,
        train.num_batches_per_step * world.size if train.scale_lr else 1,
        schedule_of(train),
        train.warmup_lr_epochs,
        steps_per_epoch,
        train.schedule_lr_per_epoch,
    )
