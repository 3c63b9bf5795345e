"""The lines of the original guides, as written: in one process, and on two real ranks."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import grace_dl as grace
from grace_dl.train.main import add_arguments, config_of


def dist_lines() -> list[Any]:
    # PyTorch distributed
    from grace_dl.dist.communicator.allgather import Allgather
    from grace_dl.dist.compressor.topk import TopKCompressor
    from grace_dl.dist.memory.residual import ResidualMemory

    grc: Any = Allgather(TopKCompressor(0.3), ResidualMemory())
    first = grc

    # or with helper
    from grace_dl.dist.helper import grace_from_params

    params = {"compressor": "topk", "memory": "residual", "communicator": "allgather"}
    grc = grace_from_params(params)
    return [first, grc]


def test_torch_distributed() -> None:
    one, two = dist_lines()
    assert one.method == two.method == grace.topk(0.3, communicator="allgather")
    x = torch.randn(40)
    assert torch.equal(one.step(x, "w"), two.step(x, "w"))
    assert int((one.step(x, "w") != 0).sum()) == 12


def loop(rank: int, world: int) -> list[torch.Tensor]:
    """The loop of the original's example: every gradient is replaced by what `step` returns."""
    results = []
    for grc in dist_lines():
        torch.manual_seed(0)
        model = nn.Linear(20, 10)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        data = torch.Generator().manual_seed(rank)
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.randn(8, 20, generator=data)).square().mean().backward()
            for name, parameter in model.named_parameters():
                assert parameter.grad is not None
                parameter.grad.copy_(grc.step(parameter.grad, name))
            optimizer.step()
        results.append(torch.cat([p.detach().view(-1) for p in model.parameters()]))
    return results


def test_torch_distributed_on_two_ranks(launch: Any) -> None:
    first, second = launch(loop, 2)
    assert all(torch.equal(first[0], other) for other in (first[1], *second))


def attached(rank: int, world: int) -> tuple[torch.Tensor, int]:
    """A communicator is taken by `attach`, and its world_size is checked there."""
    from grace_dl.dist.communicator.broadcast import Broadcast
    from grace_dl.dist.compressor.topk import TopKCompressor
    from grace_dl.dist.memory.residual import ResidualMemory

    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(nn.Linear(64, 64))
    grc = Broadcast(TopKCompressor(0.3, "torch"), ResidualMemory(), world, rank)
    handle = grace.attach(model, grc)
    model(torch.randn(8, 64, generator=torch.Generator().manual_seed(rank))).sum().backward()
    assert model.module.weight.grad is not None
    with pytest.raises(grace.GraceError, match=r"world_size=5.*2 ranks"):
        Broadcast(TopKCompressor(0.3), ResidualMemory(), 5).step(torch.ones(4), "w")
    with pytest.raises(grace.GraceError, match="rank=7"):
        Broadcast(TopKCompressor(0.3), ResidualMemory(), world, 7).step(torch.ones(4), "w")
    dist.barrier()
    return model.module.weight.grad, handle.stats().steps


def test_attached_on_two_ranks(launch: Any) -> None:
    (one, steps), (two, _) = launch(attached, 2)
    assert torch.equal(one, two) and steps == 1


@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
def test_horovod_lines_without_horovod(framework: str) -> None:
    """What needs no engine: imports, construction, the helper. tests/hvd runs them under Horovod."""
    lines = f"""
from grace_dl.{framework}.communicator.allgather import Allgather
from grace_dl.{framework}.compressor.topk import TopKCompressor
from grace_dl.{framework}.memory.residual import ResidualMemory

world_size = 2
grc = Allgather(TopKCompressor(0.3), ResidualMemory(), world_size)

# or with helper
from grace_dl.{framework}.helper import grace_from_params
params = {{'compressor': 'topk', 'memory': 'residual', 'communicator': 'allgather'}}
other = grace_from_params(params)
"""
    names: dict[str, Any] = {}
    exec(lines, names)
    assert names["grc"].world_size == 2
    assert str(names["grc"].method) == str(names["other"].method) == "topk:0.3,communicator=allgather"


def test_acpsgd_lines() -> None:
    import acpsgd

    acpsgd.init()
    model, criterion = nn.Linear(32, 8), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = acpsgd.DistributedOptimizer(optimizer)
    train_loader = [(torch.randn(4, 32), torch.randint(8, (4,))) for _ in range(3)]
    for _i, (data, target) in enumerate(train_loader):
        optimizer.zero_grad()
        output = model(data)
        loss = criterion(output, target)
        loss.backward()
        optimizer.step()
    assert optimizer.grace.stats().steps == 3
    acpsgd.shutdown()


def test_grace_from_params_of_the_package() -> None:
    assert grace.grace_from_params({"compressor": "topk"}).method == grace.topk(0.3)


TRAINING = [
    """horovodrun -np 8 python train.py --configs configs/cifar/resnet20.py \\
    configs/dgc/wm5.py configs/dgc/fp16.py configs/dgc/int32.py""",
    """mpirun -np 32 -H server0:8,server1:8,server2:8,server3:8 \\
    -bind-to none -map-by slot -x NCCL_DEBUG=INFO \\
    -x LD_LIBRARY_PATH -x PATH -mca pml ob1 \\
    -mca btl ^openib -mca btl_tcp_if_exclude docker0,lo \\
    python train.py --configs configs/imagenet/resnet50.py \\
    configs/dgc/wm0.py""",
    """horovodrun -np 8 python train.py --configs configs/cifar/resnet20.py \\
    configs/dgc/wm5.py --configs.train.num_epochs 500 --suffix .e500""",
]
"""The commands of DGC's guide."""


@pytest.mark.parametrize("line", TRAINING, ids=["warm-up", "no warm-up", "overrides"])
def test_the_commands_of_dgc(line: str, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Documented as they were, and what follows `train.py` names files that load; tests/train starts it."""
    page = (root / "docs" / "dgc.md").read_text()
    assert " ".join(line.replace("\\", "").split()) in " ".join(page.replace("\\", "").split())
    monkeypatch.chdir(root / "examples" / "dgc")
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    words = shlex.split(line.replace("\\\n", " "))
    assert Path(words[words.index("train.py")]).is_file()
    config = config_of(parser.parse_args(words[words.index("train.py") + 1 :]))
    assert config.settings.train.dgc and (config.settings.train.num_epochs == 500) == (".e500" in words)


@pytest.mark.parametrize("page", ["README.md", "tensorflow/README.md", "torch/README.md"])
def test_the_tutorials_are_where_they_were(page: str, root: Path) -> None:
    assert (root / "tutorials" / page).is_file()
    for script in ("tensorflow/tf2_hvd_mnist.py", "torch/torch_hvd_mnist.py"):
        assert (root / "tutorials" / script).is_file()
