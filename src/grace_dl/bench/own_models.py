"""Models of users: `--model my_package.my_module:build`.

The function takes no arguments and returns the model with a batch, a tuple of tensors. Either `model(*batch)` is the loss, or the function
returns a loss function as well, and the loss is `loss(model(*batch[:-1]), batch[-1])`.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from ..errors import ConfigError

FORM = "return a model and a batch (a tuple of tensors), and a loss function if model(*batch) is not the loss"


class OwnModel(nn.Module):
    """A user's model with its loss."""

    def __init__(self, net: nn.Module, loss: Callable[..., Tensor] | None) -> None:
        super().__init__()
        self.net = net
        self._loss = loss

    def forward(self, *batch: Tensor) -> Tensor:
        if self._loss is None:
            return self.net(*batch)  # type: ignore[no-any-return]
        return self._loss(self.net(*batch[:-1]), batch[-1])


def is_own(name: str) -> bool:
    """Whether the name of a model is that of a user's function."""
    return ":" in name


def load(name: str) -> Callable[[], Any]:
    """The function `module:function`; modules in the current folder are found."""
    module_name, _, function_name = name.partition(":")
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        with _without_usage():
            module = importlib.import_module(module_name)
    except SystemExit as error:
        raise ConfigError(
            f"--model {name}: importing the module ended the program ({_code(error)}); put what runs training under "
            "if __name__ == '__main__'."
        ) from error
    except ImportError as error:
        raise ConfigError(
            f"--model {name}: the module cannot be imported ({error}); run this in its folder, or install it."
        ) from error
    except Exception as error:
        raise ConfigError(f"--model {name}: importing the module raised {error!r}.") from error
    function = getattr(module, function_name, None)
    if not callable(function):
        raise ConfigError(
            f"--model {name}: {module_name} has no function {function_name!r}; define one that would {FORM}."
        )
    return function  # type: ignore[no-any-return]


@contextmanager
def _without_usage() -> Iterator[None]:
    """A script that reads the command line would explain its own options to a user of `grace`: it only ends."""
    original = argparse.ArgumentParser.error

    def error(parser: argparse.ArgumentParser, message: str) -> NoReturn:
        raise SystemExit(2)

    argparse.ArgumentParser.error = error  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        argparse.ArgumentParser.error = original  # type: ignore[method-assign]


def build(name: str) -> tuple[OwnModel, tuple[Tensor, ...]]:
    """The model and a batch of a user's function, checked."""
    function = load(name)
    try:
        made = function()
    except SystemExit as error:
        raise ConfigError(f"--model {name} ended the program ({_code(error)}); it must {FORM}.") from error
    except Exception as error:
        raise ConfigError(f"--model {name} raised {error!r}; it is called without arguments.") from error
    parts = made if isinstance(made, tuple) else (made,)
    loss = parts[2] if len(parts) == 3 else None
    if (
        len(parts) not in (2, 3)
        or not isinstance(parts[0], nn.Module)
        or (loss is not None and not callable(loss))
    ):
        raise ConfigError(f"--model {name} returned {_kinds(parts)}; it must {FORM}.")
    if not isinstance(parts[1], (Tensor, tuple, list)):
        raise ConfigError(f"--model {name} returned a batch of {type(parts[1]).__name__}; it must {FORM}.")
    batch = (parts[1],) if isinstance(parts[1], Tensor) else tuple(parts[1])
    if not all(isinstance(tensor, Tensor) for tensor in batch):
        raise ConfigError(f"--model {name} returned a batch of {_kinds(batch)}; it must {FORM}.")
    return OwnModel(parts[0], loss), batch


def check(name: str) -> None:
    """Raise unless the function gives a model whose batch has a loss."""
    model, batch = build(name)
    try:
        value = model(*batch)
    except SystemExit as error:
        raise ConfigError(
            f"--model {name}: the model ended the program ({_code(error)}) for its batch; it must return."
        ) from error
    except Exception as error:
        raise ConfigError(f"--model {name}: the model raised {error!r} for its batch.") from error
    if not isinstance(value, Tensor) or value.numel() != 1 or not value.requires_grad:
        shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise ConfigError(
            f"--model {name}: the loss must be a single number that depends on parameters, not {shape}; {FORM}."
        )


def batch(name: str, generator: torch.Generator) -> tuple[Tensor, ...]:
    """The batch of a worker: the function runs with the worker's seed."""
    with torch.random.fork_rng():
        torch.manual_seed(generator.initial_seed())
        return build(name)[1]


def _code(error: SystemExit) -> str:
    """The exit code, or the message that would be printed."""
    if isinstance(error.code, str):
        return " ".join(error.code.split())
    return f"exit code {error.code or 0}"


def _kinds(parts: tuple[Any, ...]) -> str:
    return ", ".join(type(part).__name__ for part in parts) or "nothing"
