"""Lightning, the real package: `Trainer` and `Fabric` on two ranks, on CPU, where Lightning ignores its own hooks."""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import grace_dl as grace
from ddp_models import MLP, build, flat
from grace_dl import digest
from grace_dl.errors import ConfigError, StateError
from launcher_environment import as_torchrun, without_launcher

METHOD = "topk:0.05"
STEPS = 8


def loader(world: int) -> DataLoader[Any]:
    """Four batches an epoch on each rank; the checkpoint after step 4 stands between two epochs, as Lightning does
    not resume plain loaders within one."""
    data = torch.randn(16 * world, 20, generator=torch.Generator().manual_seed(3))
    return DataLoader(TensorDataset(data), batch_size=4)


def lightning_module() -> Any:
    import lightning.pytorch as pl

    class Module(pl.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = build(MLP)

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            return self.net(batch[0]).square().mean()  # type: ignore[no-any-return]

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)

    return Module()


def sharded_module() -> Any:
    from torch.distributed.fsdp import fully_shard

    module = lightning_module()
    module.configure_model = lambda: fully_shard(module.net, mesh=module.device_mesh["data_parallel"])
    return module


def trainer(callbacks: list[Any], folder: str, **settings: Any) -> Any:
    import lightning.pytorch as pl

    chosen: dict[str, Any] = {"strategy": "ddp", "devices": 2, "max_steps": STEPS} | settings
    return pl.Trainer(
        accelerator="cpu",
        default_root_dir=folder,
        callbacks=callbacks,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **chosen,
    )


def fit(
    folder: str, method: str = METHOD, resume: str | None = None, make: Any = None, **settings: Any
) -> Any:
    from lightning.pytorch.callbacks import ModelCheckpoint

    from grace_dl.integrations.lightning import GraceCallback

    grace_callback = GraceCallback(method)
    saver = ModelCheckpoint(folder, filename="{step}", every_n_train_steps=4, save_top_k=-1)
    model = (make or lightning_module)()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        runner = trainer([grace_callback, saver], folder, **settings)
        runner.fit(model, loader(runner.world_size), ckpt_path=resume)
    return model, grace_callback


@as_torchrun
def trains_and_resumes(rank: int, world: int, folder: str) -> dict[str, Any]:
    whole, callback = fit(folder)
    stats = callback.handle.stats()
    again, resumed = fit(folder, resume=f"{folder}/step=4.ckpt")
    # The state matters: without it, the run goes another way.
    checkpoint = torch.load(f"{folder}/step=4.ckpt", weights_only=False)
    for state in list(checkpoint["callbacks"]):
        if "Grace" in state:
            del checkpoint["callbacks"][state]
    bare = f"{folder}/bare-{rank}.ckpt"
    torch.save(checkpoint, bare)
    without, _ = fit(folder, resume=bare)
    residuals = [handle.state_dict()["parts"] for handle in (callback.handle, resumed.handle)]
    return {
        "weights": flat(whole),
        "resumed": flat(again),
        "without": flat(without),
        "stats": stats,
        "resumed steps": resumed.handle.stats().steps,
        "same residuals": str(residuals[0]) == str(residuals[1]),
    }


def test_trainer_compresses_and_resumes_exactly(launch, tmp_path: Path) -> None:
    ranks = launch(trains_and_resumes, 2, str(tmp_path), timeout=120)
    assert torch.equal(ranks[0]["weights"], ranks[1]["weights"]), "replicas differ"
    for found in ranks:
        assert found["stats"].steps == STEPS
        assert 0 < found["stats"].leaving_bytes < found["stats"].dense_bytes / 3
        assert torch.equal(found["resumed"], found["weights"])
        assert found["resumed steps"] == STEPS - 4
        assert found["same residuals"]
        assert not torch.equal(found["without"], found["weights"])


@as_torchrun
def other_checkpoints(rank: int, world: int, folder: str) -> dict[str, Any]:
    fit(folder, max_steps=4)
    switched, callback = fit(folder, method="int8", resume=f"{folder}/step=4.ckpt", max_steps=5)
    checkpoint = torch.load(f"{folder}/step=4.ckpt", weights_only=False)
    (key,) = [key for key in checkpoint["callbacks"] if "Grace" in key]
    ranks = checkpoint["callbacks"][key]["ranks"]
    state = torch.load(io.BytesIO(ranks[0].numpy().tobytes()))
    alone = io.BytesIO()
    torch.save(digest.sealed({**state, "world_size": 1}), alone)
    packed = torch.frombuffer(bytearray(alone.getvalue()), dtype=torch.uint8)
    checkpoint["callbacks"][key] = {"world_size": 1, "ranks": [packed]}
    torch.save(checkpoint, f"{folder}/one-{rank}.ckpt")
    more, _ = fit(folder, resume=f"{folder}/one-{rank}.ckpt")
    errors = []
    for saved in ({"world_size": 2, "ranks": [1, 2]}, {"world_size": 2, "ranks": ranks[:1]}, {"a": 1}):
        callback.load_state_dict(saved)
        with pytest.raises(StateError) as error:
            callback.restore()
        errors.append(str(error.value))
    return {"method": str(callback.handle.method), "weights": (flat(switched), flat(more)), "errors": errors}


def test_checkpoints_of_another_method_or_number_of_ranks(launch, tmp_path: Path) -> None:
    ranks = launch(other_checkpoints, 2, str(tmp_path), timeout=120)
    for found in ranks:
        assert found["method"] == "int8"
        assert all("damaged" in error for error in found["errors"])
        for mine, first in zip(found["weights"], ranks[0]["weights"]):
            assert torch.equal(mine, first)


@as_torchrun
def fabric(rank: int, world: int, folder: str) -> dict[str, Any]:
    import lightning as L

    from grace_dl.integrations.lightning import GraceCallback

    def run(first: int, resume: bool) -> tuple[torch.Tensor, Any]:
        callback = GraceCallback(grace.topk(0.05))
        runner = L.Fabric(accelerator="cpu", devices=2, strategy="ddp", callbacks=[callback])
        runner.launch()
        net = build(MLP)
        model, optimizer = runner.setup(net, torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9))
        state = {"model": model, "optimizer": optimizer, "grace": callback}
        if resume:
            runner.load(f"{folder}/fabric.ckpt", state)
        for step in range(first, STEPS):
            if step == 3 and not resume:
                runner.save(f"{folder}/fabric.ckpt", state)
            optimizer.zero_grad()
            x = torch.randn(4, 20, generator=torch.Generator().manual_seed(10 * step + rank))
            runner.backward(model(x).square().mean())
            optimizer.step()
        return flat(net), callback.handle.stats()

    whole, stats = run(0, resume=False)
    return {"whole": whole, "resumed": run(3, resume=True)[0], "stats": stats}


def test_fabric_compresses_and_resumes_exactly(launch, tmp_path: Path) -> None:
    ranks = launch(fabric, 2, str(tmp_path), timeout=120)
    for found in ranks:
        assert torch.equal(found["whole"], ranks[0]["whole"])
        assert torch.equal(found["resumed"], found["whole"])
        assert found["stats"].leaving_bytes < found["stats"].dense_bytes / 3


@as_torchrun
def sharded(rank: int, world: int, folder: str) -> dict[str, Any]:
    """FSDP2, for which Lightning restores callbacks after it has set up the model."""
    from lightning.pytorch.strategies import ModelParallelStrategy

    def run(resume: str | None = None) -> tuple[torch.Tensor, Any]:
        strategy = ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1)
        model, callback = fit(folder, "int4", resume, strategy=strategy, make=sharded_module)
        weights = [p.full_tensor().detach().reshape(-1) for p in model.parameters()]
        return torch.cat(weights), callback.handle.stats()

    whole, stats = run()
    return {"whole": whole, "resumed": run(f"{folder}/step=4.ckpt")[0], "stats": stats}


def test_sharded_models_compress_and_resume_exactly(launch, tmp_path: Path) -> None:
    ranks = launch(sharded, 2, str(tmp_path), timeout=120)
    for found in ranks:
        assert torch.equal(found["whole"], ranks[0]["whole"])
        assert torch.equal(found["resumed"], found["whole"])
        assert 0 < found["stats"].leaving_bytes < found["stats"].dense_bytes / 3


@as_torchrun
def refused(rank: int, world: int, folder: str) -> list[str]:
    from grace_dl.integrations.lightning import GraceCallback

    errors = []
    with pytest.raises(ConfigError) as error:
        _ = GraceCallback(METHOD).handle
    errors.append(str(error.value))
    with pytest.raises(ConfigError) as error:  # a model of its own on each of two ranks
        fit(folder, strategy="auto", devices=1)
    return [*errors, str(error.value)]


def test_what_cannot_work_is_refused(launch, tmp_path: Path) -> None:
    for early, strategy in launch(refused, 2, str(tmp_path), timeout=120):
        assert "not attached yet" in early
        assert "Module" in strategy and 'strategy="ddp"' in strategy


def alone(rank: int, world: int, folder: str) -> dict[str, Any]:
    settings: dict[str, Any] = {"strategy": "auto", "devices": 1}
    folder = f"{folder}/{rank}"
    with without_launcher():
        model, callback = fit(folder, **settings)
        again, _ = fit(folder, resume=f"{folder}/step=4.ckpt", **settings)
        plain = lightning_module()
        trainer([], folder, enable_checkpointing=False, **settings).fit(plain, loader(1))
    return {"weights": [flat(model), flat(again), flat(plain)], "stats": callback.handle.stats()}


def test_a_single_process_trains_as_without_the_callback(launch, tmp_path: Path) -> None:
    for found in launch(alone, 2, str(tmp_path), timeout=120, init=False):  # two processes, each for itself
        compressed, resumed, plain = found["weights"]
        assert torch.equal(compressed, plain) and torch.equal(resumed, plain)
        assert found["stats"].leaving_bytes == 0
