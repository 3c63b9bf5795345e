"""The `Trainer` of transformers and Accelerate, the real packages, on two ranks."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import grace_dl as grace
from ddp_models import MLP, build, flat
from grace_dl.errors import ConfigError, StateError
from launcher_environment import as_torchrun, without_launcher

METHOD = "topk:0.05"


class Regression(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = build(MLP)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": self.net(x).square().mean()}


def trainer(folder: str, method: Any = METHOD, **settings: Any) -> tuple[Any, Any]:
    from transformers import Trainer, TrainingArguments

    from grace_dl.integrations.transformers import GraceCallback

    generator = torch.Generator().manual_seed(3)
    arguments = TrainingArguments(
        output_dir=folder,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        max_steps=8,
        save_steps=3,
        logging_steps=100,
        learning_rate=0.05,
        **settings,
    )
    data = [{"x": torch.randn(20, generator=generator)} for _ in range(40)]
    runner = Trainer(Regression(), arguments, train_dataset=data)  # type: ignore[arg-type]
    callback = GraceCallback(method, runner)
    runner.add_callback(callback)
    return runner, callback


@as_torchrun
def trains_and_resumes(rank: int, world: int, folder: str) -> dict[str, Any]:
    whole, callback = trainer(folder)
    whole.train()
    stats = callback.handle.stats()
    moved = f"{folder}/moved-{rank}"
    shutil.copytree(f"{folder}/checkpoint-3", f"{moved}/checkpoint-3")
    resumed, again = trainer(moved)
    resumed.train(resume_from_checkpoint=True)
    for file in Path(moved).glob("checkpoint-3/grace-*"):
        file.unlink()
    without, _ = trainer(f"{moved}/without")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        without.train(resume_from_checkpoint=f"{moved}/checkpoint-3")
    return {
        "weights": [flat(runner.model) for runner in (whole, resumed)],
        "without": flat(without.model),
        "warned": any("no state of GRACE" in str(warning.message) for warning in caught),
        "stats": stats,
        "resumed steps": again.handle.stats().steps,
    }


def test_trainer_compresses_and_resumes_exactly(launch, tmp_path: Path) -> None:
    ranks = launch(trains_and_resumes, 2, str(tmp_path), timeout=180)
    for found in ranks:
        for weights in found["weights"]:
            assert torch.equal(weights, ranks[0]["weights"][0])
        assert found["stats"].steps == 8  # one exchange for two accumulated batches
        assert 0 < found["stats"].leaving_bytes < found["stats"].dense_bytes / 3
        assert found["resumed steps"] == 5
        assert found["warned"] and not torch.equal(found["without"], found["weights"][0])


@as_torchrun
def compiled(rank: int, world: int, folder: str) -> dict[str, Any]:
    runner, callback = trainer(folder, torch_compile=True, torch_compile_backend="aot_eager")
    runner.train()
    torch._dynamo.reset()
    return {"weights": flat(runner.model), "stats": callback.handle.stats()}


def test_trainer_compiles_its_model(launch, tmp_path: Path) -> None:
    ranks = launch(compiled, 2, str(tmp_path), timeout=180)
    for found in ranks:
        assert torch.equal(found["weights"], ranks[0]["weights"])
        assert found["stats"].steps == 8
        assert 0 < found["stats"].leaving_bytes < found["stats"].dense_bytes / 3


@as_torchrun
def accelerate(rank: int, world: int, folder: str) -> dict[str, Any]:
    from accelerate import Accelerator

    from grace_dl.integrations.accelerate import attach

    def run(first: int, resume: bool) -> tuple[torch.Tensor, Any]:
        accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
        net = build(MLP)
        model, optimizer = accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9))
        handle = attach(accelerator, model, grace.topk(0.05))
        if resume:
            accelerator.load_state(f"{folder}/accelerate")
        for step in range(first, 16):
            if step == 6 and not resume:
                accelerator.save_state(f"{folder}/accelerate")
            with accelerator.accumulate(model):
                x = torch.randn(4, 20, generator=torch.Generator().manual_seed(10 * step + rank))
                accelerator.backward(model(x).square().mean())
                optimizer.step()
                optimizer.zero_grad()
        return flat(net), handle.stats()

    whole, stats = run(0, resume=False)
    with pytest.raises(ConfigError) as error:
        attach(Accelerator(cpu=True), build(MLP), METHOD)
    resumed, _ = run(6, resume=True)
    if rank == 1:
        Path(f"{folder}/accelerate/grace-rank1-of-2.pt").unlink()
    torch.distributed.barrier()
    with pytest.raises(StateError) as missing:
        run(6, resume=True)
    return {"weights": [whole, resumed], "stats": stats, "errors": [str(error.value), str(missing.value)]}


def test_accelerate_compresses_and_resumes_exactly(launch, tmp_path: Path) -> None:
    ranks = launch(accelerate, 2, str(tmp_path), timeout=120)
    for found in ranks:
        for weights in found["weights"]:
            assert torch.equal(weights, ranks[0]["weights"][0])
        assert found["stats"].steps == 8
        assert found["stats"].leaving_bytes < found["stats"].dense_bytes / 3
        unwrapped, incomplete = found["errors"]
        assert "accelerator.prepare" in unwrapped and "MLP" in unwrapped
        assert "found: ranks [0] of 2" in incomplete


def alone(rank: int, world: int, folder: str) -> dict[str, Any]:
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(reset_partial_state=True)
    with without_launcher():
        runner, callback = trainer(f"{folder}/{rank}")
        runner.train()
        again, _ = trainer(f"{folder}/{rank}")
        again.train(resume_from_checkpoint=f"{folder}/{rank}/checkpoint-3")
    AcceleratorState._reset_state(reset_partial_state=True)
    return {"weights": [flat(runner.model), flat(again.model)], "stats": callback.handle.stats()}


def test_a_single_process_trains(launch, tmp_path: Path) -> None:
    for found in launch(alone, 2, str(tmp_path), timeout=120, init=False):  # two processes, each for itself
        assert torch.equal(*found["weights"])
        assert found["stats"].leaving_bytes == 0
