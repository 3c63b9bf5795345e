"""The contract of handles for methods of two levels, on two nodes of two ranks."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

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
