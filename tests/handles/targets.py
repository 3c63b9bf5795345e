"""What a method can be attached to, each behind the same few calls, so that one contract is tested at all of them.

To add a target: write a subclass of `Target`, and list it in `PLACES` or `OTHER_PLACES` with the numbers of ranks it is tested on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP

import acpsgd
import grace_dl as grace
from dgc.horovod.optimizer import DistributedOptimizer as DGCDistributedOptimizer
from grace_dl import Handle, Method
from grace_dl.communicator.reduce_scatter import ReduceScatter
from grace_dl.errors import ConfigError
from grace_dl.session import Session
from grace_dl.transport.local import LocalTransport
from values import not_none, total

SHAPES = {"layer.weight": (64, 48), "layer.bias": (48,), "other.weight": (40, 30)}
"""Two matrices that methods compress, and a vector that most send as it is."""

BUCKET_BYTES = 4096
"""Little enough for several buckets."""

Tensors = dict[str, Tensor]


def gradients(rank: int, step: int) -> Tensors:
    """What one rank brings to one step: in part alike over ranks, and known to every rank."""

    def draw(seed: int) -> Tensors:
        generator = torch.Generator().manual_seed(seed)
        return {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}

    common, own = draw(1000 + step), draw(10_000 * (rank + 1) + step)
    return {name: common[name] + own[name] for name in SHAPES}


def mean(world: int, step: int) -> Tensors:
    """The plain average of a step."""
    everyone = [gradients(rank, step) for rank in range(world)]
    return {name: total(of_rank[name] for of_rank in everyone) / world for name in SHAPES}


class Target:
    """Something that exchanges the gradients of `SHAPES`; `step` gives each parameter exactly the gradient it is told."""

    has_backward: ClassVar[bool] = True
    averages_by_itself: ClassVar[bool] = False
    """Whether gradients are averaged without GRACE."""
    lossy: ClassVar[str] = "topk:0.05,dense_below=0"
    """A method with error feedback that sends little."""
    other: ClassVar[str] = "powersgd:2"
    journey: ClassVar[tuple[str, ...]] = ()
    """Methods to switch between; none for those of the contract."""
    handle: Handle

    @classmethod
    def supports(cls, text: str) -> bool:
        """Whether a method can be attached."""
        return True

    @classmethod
    def loaded(cls, state: dict[str, Any]) -> dict[str, Any]:
        """What of a state `load_state_dict` restores."""
        return state

    def __init__(self, method: Method | str) -> None:
        self.attach(method)

    def attach(self, method: Method | str) -> Handle:
        """Attach to it, and return the handle; also once an earlier handle is closed."""
        raise NotImplementedError

    def step(self, grads: Tensors, during: Callable[[], None] | None = None) -> Tensors:
        """Exchange gradients; the results. `during` is called in the middle of the step."""
        raise NotImplementedError

    def counted(self, steps: int) -> int:
        """What `stats().steps` says after that many steps."""
        return steps


class Weights(nn.Module):
    """A model whose gradients are its input."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.other = nn.Module(), nn.Module()
        for name, shape in SHAPES.items():
            owner, _, own = name.partition(".")
            getattr(self, owner).register_parameter(own, nn.Parameter(torch.zeros(shape)))

    def forward(self, grads: Tensors) -> Tensor:
        return torch.stack([(p * grads[name]).sum() for name, p in self.named_parameters()]).sum()


class WithBackward(Target):
    """A model that is called and differentiated."""

    model: Weights
    network: nn.Module

    def step(self, grads: Tensors, during: Callable[[], None] | None = None) -> Tensors:
        self.model.zero_grad()
        hook = None
        if during is not None:
            # The last parameter is the first that backward reaches; by the first, a bucket has been sent.
            hook = next(self.model.parameters()).register_post_accumulate_grad_hook(lambda _: during())
        self.network(grads).backward()
        if hook is not None:
            hook.remove()
        self.after_backward()
        return {name: not_none(p.grad).clone() for name, p in self.model.named_parameters()}

    def after_backward(self) -> None:
        pass


class DDPTarget(WithBackward):
    averages_by_itself = True

    def __init__(self, method: Method | str) -> None:
        self.model = Weights()
        self.network = DDP(self.model, bucket_cap_mb=BUCKET_BYTES / 2**20)
        # DDP fills its buckets anew after the first step, and the order in which three ranks add up depends on buckets.
        for _ in range(2):
            self.network(gradients(0, 0)).backward()
        self.attach(method)

    def attach(self, method: Method | str) -> Handle:
        self.handle = grace.attach(self.network, method)  # type: ignore[arg-type]
        return self.handle


class OptimizerTarget(WithBackward):
    """Under `torch.distributed`, or alone."""

    def __init__(self, method: Method | str) -> None:
        self.model = self.network = Weights()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.attach(method)

    def attach(self, method: Method | str) -> Handle:
        names = self.model.named_parameters()
        return self.adopt(grace.attach(self.optimizer, method, named_parameters=names))

    def adopt(self, handle: Any) -> Handle:
        """Use this handle, with several buckets."""
        handle.reducer.options.bucket_bytes = BUCKET_BYTES
        handle.reducer.refill()
        self.handle = handle
        return self.handle

    def after_backward(self) -> None:
        self.optimizer.step()


class ACPSGDTarget(OptimizerTarget):
    """ACP-SGD's optimizer."""

    def attach(self, method: Method | str) -> Handle:
        plain = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.optimizer = self.wrapped(plain)
        self.adopt(self.optimizer.grace)  # type: ignore[attr-defined]
        self.handle.switch(method)
        return self.handle

    def wrapped(self, optimizer: torch.optim.SGD) -> torch.optim.SGD:
        made: torch.optim.SGD = acpsgd.DistributedOptimizer(
            optimizer, self.model.named_parameters(), method="ssgd"
        )
        return made


class DGCTarget(ACPSGDTarget):
    """DGC's optimizer."""

    def wrapped(self, optimizer: torch.optim.SGD) -> torch.optim.SGD:
        made: torch.optim.SGD = DGCDistributedOptimizer(optimizer, self.model.named_parameters())
        return made


class ManualTarget(Target):
    """A loop that exchanges each gradient itself."""

    has_backward = False

    def attach(self, method: Method | str) -> Handle:
        self.handle = grace.manual(method)
        return self.handle

    def step(self, grads: Tensors, during: Callable[[], None] | None = None) -> Tensors:
        return {name: self.handle.step(grad, name) for name, grad in grads.items()}  # type: ignore[attr-defined]

    def counted(self, steps: int) -> int:
        return steps * len(SHAPES)


class LocalStepsTarget(Target):
    """Local steps with an exchange after each; from zero, the difference is the gradient."""

    has_backward = False
    handle: grace.LocalSteps

    def attach(self, method: Method | str) -> Handle:
        self.model = Weights()
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.handle = grace.LocalSteps(self.model, optimizer, method, every=1)
        return self.handle

    @classmethod
    def loaded(cls, state: dict[str, Any]) -> dict[str, Any]:
        # Without a digest of the model's parameters, which a test does not load.
        local = {name: value for name, value in state["local"].items() if name != "parameters"}
        return {**state, "local": local, "digest": ""}

    def step(self, grads: Tensors, during: Callable[[], None] | None = None) -> Tensors:
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                self.handle._anchor[name].zero_()
                parameter.copy_(-grads[name])
        self.handle.step()
        return {name: -p.detach().clone() for name, p in self.model.named_parameters()}


class OneBitAdamTarget(Target):
    """An optimizer behind its warm-up whose momentum is the gradient: the result is its momentum, as variances are 1."""

    has_backward = False

    @classmethod
    def supports(cls, text: str) -> bool:
        return "signum" not in text  # votes on signs

    def attach(self, method: Method | str) -> Handle:
        model = Weights()
        self.optimizer = grace.OneBitAdam(
            model.named_parameters(), betas=(0.0, 0.999), warmup=1, method=method
        )
        self.parameters = dict(model.named_parameters())
        for parameter in self.parameters.values():
            one = torch.ones_like(parameter)
            self.optimizer.state[parameter] = {
                "step": 1,
                "updates": 10**6,
                "exp_avg": one.clone(),
                "exp_avg_sq": one,
            }
        self.handle = self.optimizer.grace
        return self.handle

    def step(self, grads: Tensors, during: Callable[[], None] | None = None) -> Tensors:
        for name, parameter in self.parameters.items():
            parameter.grad = grads[name].clone()
        self.optimizer.step()
        return {name: self.optimizer.state[p]["exp_avg"].clone() for name, p in self.parameters.items()}


class Part(nn.Module):
    """Adds the product of its parameters and their gradients to its input."""

    def __init__(self, shapes: dict[str, tuple[int, ...]]) -> None:
        super().__init__()
        for name, shape in shapes.items():
            self.register_parameter(name, nn.Parameter(torch.zeros(shape)))

    def forward(self, x: Tensor, grads: Tensors) -> Tensor:
        return x + torch.stack([(p * grads[name]).sum() for name, p in self.named_parameters()]).sum()


class Calls(torch.autograd.Function):
    """Calls a function in backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, function: Callable[[], None]) -> Tensor:  # type: ignore[override]
        ctx.function = function
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:  # type: ignore[override]
        ctx.function()
        return grad, None


class Parts(nn.Module):
    """Modules that are sharded one by one, and run one after another."""

    def __init__(self) -> None:
        super().__init__()
        for owner in ("layer", "other"):
            shapes = {n.partition(".")[2]: s for n, s in SHAPES.items() if n.startswith(owner)}
            setattr(self, owner, Part(shapes))

    def forward(self, grads: Tensors, during: Callable[[], None]) -> Tensor:
        x = torch.zeros((), requires_grad=True)
        for owner, part in self.named_children():
            # Backward comes by here after it has left the parts that follow.
            x = Calls.apply(x, during) if owner == "other" else x
            own = {n.partition(".")[2]: g for n, g in grads.items() if n.startswith(owner)}
            x = part(x, own)
        return x


class FSDPTarget(Target):
    """A sharded model."""

    averages_by_itself = True
    lossy = "int4:memory=residual,dense_below=0"
    other = "int8:memory=residual"
    journey = (
        lossy,
        "none",
        lossy,
        "int8:memory=residual",
        "by_parameter(*.bias=none; other.*=fp8:memory=residual; default=int8:memory=residual)",
        "schedule(0=none; 11=int4:memory=residual)",
        "eden:memory=residual,dense_below=0",
        "none",
    )

    def __init__(self, method: Method | str) -> None:
        self.model = Parts()
        for module in (*self.model.children(), self.model):
            fully_shard(module).set_force_sum_reduction_for_comms(True)  # Gloo has no average
        self.attach(method)

    @classmethod
    def supports(cls, text: str) -> bool:
        try:
            Session(grace.parse(text), LocalTransport(), ReduceScatter)
        except ConfigError:
            return False
        return True

    def attach(self, method: Method | str) -> Handle:
        self.handle = grace.attach(self.model, method)
        return self.handle

    def step(self, grads: Tensors, during: Callable[[], None] | None = None) -> Tensors:
        self.model.zero_grad()
        self.model(grads, during or (lambda: None)).backward()
        return {name: not_none(p.grad).full_tensor() for name, p in self.model.named_parameters()}  # type: ignore[attr-defined]


def on_ranks(launch: Any, world: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Call `function(rank, world, *arguments)` on ranks of `torch.distributed`; results by rank."""
    return launch(function, world, *arguments)


def alone(launch: Any, world: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """Call it in this process, which has no engine."""
    return [function(0, 1, *arguments)]


@dataclass(frozen=True)
class Place:
    """A target, and the ranks it is tested on."""

    target: type[Target]
    world: int
    run: Callable[..., list[Any]] = on_ranks

    def __str__(self) -> str:
        return f"{self.target.__name__}-{self.world}"


PLACES = [
    Place(DDPTarget, 2),
    Place(DDPTarget, 3),
    Place(OptimizerTarget, 1, alone),
    Place(OptimizerTarget, 2),
    Place(OptimizerTarget, 3),
    Place(ACPSGDTarget, 2),
    Place(DGCTarget, 2),
]
"""DDP models and optimizers."""

OTHER_PLACES = [
    Place(FSDPTarget, 2),
    Place(FSDPTarget, 4),
    Place(ManualTarget, 1, alone),
    Place(ManualTarget, 2),
    Place(LocalStepsTarget, 1, alone),
    Place(LocalStepsTarget, 2),
    Place(OneBitAdamTarget, 1, alone),
    Place(OneBitAdamTarget, 2),
]
"""Sharded models, hand-written loops, local steps, and optimizers that exchange momenta."""
