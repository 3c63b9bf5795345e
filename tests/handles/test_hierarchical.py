"""The contract of handles for methods of two levels, on two nodes of two ranks."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import torch

import grace_dl as grace
from handles import contract
from handles.contract import Check
from handles.targets import DDPTarget, LocalStepsTarget, ManualTarget, OptimizerTarget, Target


def two_levels(outer: str, inner: str = "none") -> str:
    return f"hierarchical(inner={inner}; outer={outer}; ranks_per_node=2)"


class InNodes:
    """A target whose methods have two levels."""

    lossy: ClassVar[str] = two_levels("topk:0.05,dense_below=0")
    other: ClassVar[str] = two_levels("powersgd:2")
    journey: ClassVar[tuple[str, ...]] = (
        lossy,
        "none",
        lossy,
        two_levels("int8:memory=residual"),
        "topk:0.05,dense_below=0",
        two_levels("powersgd:2", "int8:memory=residual"),
        two_levels("topk:0.2", "int8:memory=residual"),
        two_levels("by_parameter(*.bias=none; other.*=topk:0.1; default=powersgd:1)"),
        two_levels("schedule(0=topk:0.5; 17=acpsgd:1)"),
        "hierarchical(inner=none; outer=topk:0.05; nodes=[[0,2],[1,3]])",
        "none",
    )


class DDPInNodes(InNodes, DDPTarget):
    pass


class OptimizerInNodes(InNodes, OptimizerTarget):
    pass


class ManualInNodes(InNodes, ManualTarget):
    pass


class LocalStepsInNodes(InNodes, LocalStepsTarget):
    pass


RESUMED = [
    two_levels("topk:0.1"),
    two_levels("int4:memory=residual", "int8:memory=residual"),
    two_levels("dgc:0.05,warmup_stages=2,warmup_steps=3"),
    two_levels(
        "by_parameter(*.bias=none; other.*=int8:memory=residual,communicator=alltoall; default=powersgd:2)"
    ),
    f"schedule(0=none; 3={two_levels('signum')})",
]

EVERYWHERE = [
    Check(contract.counting),
    Check(contract.journey, verify=contract.nothing_is_lost),
    Check(contract.failing_switch),
    Check(contract.resuming_what_is_carried),
    Check(contract.loading_the_wrong_state),
    Check(contract.closing),
]
IN_DDP = [
    Check(contract.detaching),
    Check(contract.within_a_step),
    *(Check(contract.resuming, (text,)) for text in RESUMED),
    Check(contract.leaving_a_block),
    Check(contract.sharing, ("lossy",)),
    Check(
        contract.becoming_dense,
        (two_levels("topk:0.05,dense_below=0"), two_levels("topk:0.05,dense_below=5000")),
        contract.replicas_are_identical,
    ),
]


@pytest.mark.parametrize(
    "target, check",
    [
        *(
            (target, check)
            for target in (DDPInNodes, OptimizerInNodes, ManualInNodes)
            for check in EVERYWHERE
        ),
        *((DDPInNodes, check) for check in IN_DDP),
        (LocalStepsInNodes, EVERYWHERE[1]),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else str(value),
)
def test_contract(launch: Any, target: type[Target], check: Check) -> None:
    check.verify(4, launch(check.work, 4, target, *check.arguments))


class Tracks(torch.nn.Module):
    """Uses its side branch when told to."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.main, self.side = torch.nn.Linear(20, 64), torch.nn.Linear(20, 64)

    def forward(self, x: torch.Tensor, with_side: bool) -> torch.Tensor:
        return self.main(x) + self.side(x) if with_side else self.main(x)  # type: ignore[no-any-return]


def on_one_node(rank: int, world: int, door: str, outer: str) -> dict[str, Any]:
    model: torch.nn.Module = Tracks()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    method = grace.parse(f"hierarchical(inner=none; outer={outer}; ranks_per_node=1)")
    if door == "ddp":
        model = torch.nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)
        handle = grace.attach(model, method)
    else:
        handle = grace.attach(optimizer, method, named_parameters=model.named_parameters())
    for step in range(2):
        optimizer.zero_grad()
        model(torch.ones(2, 20) * (rank + 1), with_side=rank == 0 or step > 0).square().mean().backward()
        optimizer.step()
    weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    return {"weights": weights, "steps": handle.state_dict()["steps"]}


@pytest.mark.parametrize("outer", ["none", "fp16", "bf16", "topk:0.5,dense_below=0"])
@pytest.mark.parametrize("door", ["ddp", "optimizer"])
def test_a_parameter_that_one_node_uses(launch: Any, door: str, outer: str) -> None:
    first, second = launch(on_one_node, 2, door, outer)
    assert torch.equal(first["weights"], second["weights"])
    assert first["steps"] == second["steps"]
    assert set(first["steps"].values()) == {2}
