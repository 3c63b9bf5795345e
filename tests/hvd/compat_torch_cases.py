"""Lines of users' scripts under Horovod with PyTorch: the original GRACE's and DGC's."""

from __future__ import annotations

from typing import Any

import horovod.torch as hvd
import torch
from torch import nn

hvd.init()


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(40, 64), nn.Tanh(), nn.Linear(64, 2))


def leave() -> None:
    hvd.shutdown()


def _train(optimizer: Any, model: nn.Module, steps: int = 4) -> torch.Tensor:
    for step in range(steps):
        optimizer.zero_grad()
        x = torch.randn(16, 40, generator=torch.Generator().manual_seed(100 * step + hvd.rank()))
        nn.functional.cross_entropy(model(x), (x[:, 0] > 0).long()).backward()
        optimizer.step()
    return torch.cat([p.detach().view(-1) for p in model.parameters()])


def guide() -> list[torch.Tensor]:
    """The lines of the guide, by keyword and by position, and with the helper."""
    from grace_dl.torch.communicator.allgather import Allgather
    from grace_dl.torch.compressor.topk import TopKCompressor
    from grace_dl.torch.helper import grace_from_params
    from grace_dl.torch.memory.residual import ResidualMemory

    world_size = hvd.size()
    params = {"compressor": "topk", "memory": "residual", "communicator": "allgather"}
    results = []
    for position in (False, True):
        for grc in (Allgather(TopKCompressor(0.3), ResidualMemory(), world_size), grace_from_params(params)):
            model = network()
            optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
            named = model.named_parameters()
            if position:
                optimizer = hvd.DistributedOptimizer(optimizer, grc, named_parameters=named)
            else:
                optimizer = hvd.DistributedOptimizer(optimizer, grace=grc, named_parameters=named)
            results.append(_train(optimizer, model))
            assert optimizer.grace.stats().payload_bytes < optimizer.grace.stats().dense_bytes
    return results


def own() -> dict[str, torch.Tensor]:
    """A communicator of one's own, with Horovod's asynchronous operations, beside Horovod itself."""
    from grace_dl.torch import Communicator, Compressor, Memory

    class Half(Compressor):
        def compress(self, tensor: Any, name: str) -> Any:
            return [tensor.double()], tensor.dtype

        def decompress(self, tensors: Any, ctx: Any) -> Any:
            return tensors[0].to(ctx)

    class Nothing(Memory):
        def compensate(self, tensor: Any, name: str) -> Any:
            return tensor

    class Allreduce(Communicator):
        def async_send(self, tensors: Any, name: str) -> Any:
            return [hvd.allreduce_async_(t, name=f"{name}.{i}", op=hvd.Sum) for i, t in enumerate(tensors)]

        def wait_receive(self, handles: Any, ctx: Any) -> Any:
            return self.compressor.decompress([hvd.synchronize(h) / hvd.size() for h in handles], ctx)

    found = {}
    for kind, options in (("horovod", {}), ("own", {"grace": Allreduce(Half(), Nothing())})):
        model = network()
        optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), **options)
        found[kind] = _train(optimizer, model)
    return found


def deep_compression() -> tuple[torch.Tensor, float, float]:
    """The lines of DGC's train.py."""
    from dgc.compression import DGCCompressor
    from dgc.horovod.optimizer import DistributedOptimizer
    from dgc.memory import DGCSGDMemory
    from dgc.optim.sgd import DGCSGD

    model = network()
    compression = DGCCompressor(0.05, memory=DGCSGDMemory(momentum=0.9), warmup_epochs=2)
    compression.memory.initialize(model.named_parameters())
    compression.initialize({name: p for name, p in model.named_parameters() if p.dim() > 1}.items())
    optimizer: Any = DGCSGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    optimizer = DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        compression=compression,
        backward_passes_per_step=1,
        op=hvd.Average,
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    for epoch in range(3):
        compression.warmup_compress_ratio(epoch)
        weights = _train(optimizer, model)
    return weights, compression.ratio, optimizer.grace.stats().ratio
