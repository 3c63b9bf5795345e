"""State is kept when a model is wrapped differently; names that no parameter has are reported."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

import grace_dl as grace
from grace_dl.digest import sealed
from grace_dl.errors import StateError
from grace_dl.names import canonical_names
from handles.targets import Weights, gradients
from values import not_none

OTHER_WIDTH = [
    "topk:0.1,dense_below=0",
    "dgc:0.1,dense_below=0",
    "int8:memory=residual",
    "powersgd:2",
    "topk:0.1,memory=ef21,dense_below=0",
]

METHOD = "by_parameter(layer.*=randomk:0.1,memory=residual; default=topk:0.1)"


def stepped(network: nn.Module, model: nn.Module, rank: int, step: int) -> list[torch.Tensor]:
    network.zero_grad()
    network(gradients(rank, step)).backward()
    return [not_none(p.grad).clone() for p in model.parameters()]


def with_and_without_compile(rank: int, world: int) -> None:
    model = Weights()
    plain = DDP(model)
    first = grace.attach(plain, METHOD)
    stepped(plain, model, rank, 0)
    saved = first.state_dict()
    expected = stepped(plain, model, rank, 1)

    model = Weights()
    compiled = DDP(torch.compile(model, backend="eager"))  # type: ignore[arg-type]
    assert "module._orig_mod.layer.weight" in dict(compiled.named_parameters())
    second = grace.attach(compiled, METHOD)
    second.load_state_dict(saved)
    assert second.state_dict()["digest"] == saved["digest"]
    for a, b in zip(expected, stepped(compiled, model, rank, 1)):
        assert torch.equal(a, b)


def test_compiling_a_model_keeps_its_state(launch: Any) -> None:
    """Residuals, the choice of methods by name and random draws are those of the plain model."""
    launch(with_and_without_compile, 2)


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "module._orig_mod."])
def test_names_of_a_wrapped_model_are_recognized(prefix: str) -> None:
    def attached(names: str) -> tuple[nn.Module, torch.optim.Optimizer, grace.Handle]:
        model = Weights()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        named = [(names + name, p) for name, p in model.named_parameters()]
        return model, optimizer, grace.attach(optimizer, METHOD, named_parameters=named)

    model, optimizer, handle = attached(prefix)
    stepped(model, model, 0, 0)
    optimizer.step()
    saved = handle.state_dict()
    old = {**saved, "steps": {prefix + name: step for name, step in saved["steps"].items()}}
    for state in (saved, sealed(old)):
        model, optimizer, again = attached("")
        again.load_state_dict(state)
        assert again.state_dict()["digest"] == saved["digest"]
    unknown = sealed({**saved, "carried": {"removed.weight": torch.zeros(3)}})
    with pytest.raises(StateError, match=r"not here: removed\.weight; attach to the model that was saved"):
        again.load_state_dict(unknown)
    assert again.state_dict()["digest"] == saved["digest"]


def test_names_that_would_collide_stay() -> None:
    assert canonical_names(["module.w", "w"]) == ["module.w", "w"]
    assert canonical_names(["module.module.w", "module.b"]) == ["w", "b"]
    assert canonical_names(["module"]) == ["module"]


class Wide(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = nn.Linear(64, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)  # type: ignore[no-any-return]


def attached_wide(width: int, method: str, through_ddp: bool) -> tuple[nn.Module, grace.Handle, Any]:
    model = Wide(width)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if through_ddp:
        network = DDP(model)
        return network, grace.attach(network, method), optimizer
    return model, grace.attach(optimizer, method, named_parameters=model.named_parameters()), optimizer


def of_another_width(rank: int, world: int, method: str, carried: bool, through_ddp: bool = True) -> None:
    wide, first, optimizer = attached_wide(96, method, through_ddp)
    for _ in range(2):
        wide(torch.randn(4, 64)).square().sum().backward()
        optimizer.step()
    if carried:
        first.switch("none")
    narrow, second, other = attached_wide(48, str(first.method), through_ddp)
    before = second.state_dict()
    with pytest.raises(
        StateError, match=r"another model: .*'layer.weight' .* 6144 elements, the parameter 3072"
    ):
        second.load_state_dict(first.state_dict())
    assert second.state_dict()["digest"] == before["digest"]
    narrow(torch.randn(4, 64)).square().sum().backward()
    other.step()


@pytest.mark.parametrize("carried", [False, True], ids=["held", "carried"])
@pytest.mark.parametrize("method", OTHER_WIDTH)
def test_the_state_of_a_model_of_another_width_is_refused_before_it_is_used(
    method: str, carried: bool
) -> None:
    of_another_width(0, 1, method, carried, through_ddp=False)


def test_the_state_of_another_width_leaves_a_ddp_model_usable(launch: Any) -> None:
    launch(of_another_width, 2, "topk:0.1,dense_below=0", False)
