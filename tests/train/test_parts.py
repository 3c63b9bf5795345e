"""The parts of a run: ranks from launchers, data, batches, schedules, logs."""

from __future__ import annotations

import http.server
import importlib.util
import json
import os
import sys
import threading
import types
import uuid
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from grace_dl.errors import ConfigError, MissingExtraError
from grace_dl.train import log as logs
from grace_dl.train import world
from grace_dl.train.batches import Batches, once
from grace_dl.train.datasets import Characters, Images, Synthetic, _crop_and_flip
from grace_dl.train.folder import ImageFolder
from grace_dl.train.models import lstm, small_cnn, transformer
from grace_dl.train.schedule import CosineAnnealingLR, LearningRate, MultiStepLR, StepLR
from grace_dl.train.world import World, current, find, join, joined, leave

# Ranks --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, World()),
        (
            {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"},
            World(3, 4, 1, 2, "torchrun"),
        ),
        (
            {"HOROVOD_RANK": "1", "HOROVOD_SIZE": "2", "HOROVOD_LOCAL_RANK": "0", "HOROVOD_LOCAL_SIZE": "1"},
            World(1, 2, 0, 1, "horovodrun"),
        ),
        (
            {
                "OMPI_COMM_WORLD_RANK": "5",
                "OMPI_COMM_WORLD_SIZE": "8",
                "OMPI_COMM_WORLD_LOCAL_RANK": "1",
                "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
            },
            World(5, 8, 1, 4, "mpirun"),
        ),
        (
            {"PMI_RANK": "0", "PMI_SIZE": "2", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2"},
            World(0, 2, 0, 2, "mpiexec"),
        ),
    ],
)
def test_ranks_from_the_launchers_variables(environment: dict[str, str], expected: World) -> None:
    assert find(environment) == expected


def test_broken_variables_are_rejected() -> None:
    with pytest.raises(ConfigError, match="contradict"):
        find({"RANK": "2", "WORLD_SIZE": "2"})
    with pytest.raises(ConfigError, match="not a whole number"):
        find({"PMI_RANK": "x", "PMI_SIZE": "2"})


def meet(rank: int, world: int, variables: dict[str, str]) -> list[Any]:
    """Join as under a launcher, from its variables alone."""
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        os.environ.pop(name, None)
    os.environ.update({name: text.replace("{rank}", str(rank)) for name, text in variables.items()})
    try:
        here = find()
        assert join(here, "gloo") and not join(here, "gloo")
        x = torch.tensor([float(rank + 1)])
        torch.distributed.all_reduce(x)
        leave(here)
        return [here.rank, here.launcher, x.item()]
    finally:
        for name in variables:
            os.environ.pop(name, None)


def fail_alone(rank: int, world: int, variables: dict[str, str]) -> str:
    """Rank 1 fails in a run while rank 0 waits for it; returns what rank 0 raises."""
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        os.environ.pop(name, None)
    os.environ.update({name: text.replace("{rank}", str(rank)) for name, text in variables.items()})
    try:
        with joined(current(), "cpu"):
            if rank == 1:
                raise ValueError("this rank is wrong")
            torch.distributed.barrier()
    except Exception as error:
        assert not torch.distributed.is_initialized()
        return type(error).__name__
    finally:
        for name in variables:
            os.environ.pop(name, None)
    raise AssertionError("no error")


class KeyValue(http.server.BaseHTTPRequestHandler):
    """What horovodrun's rendezvous server does for its ranks: PUT a value, GET it or 404."""

    values: dict[str, bytes] = {}

    def do_PUT(self) -> None:
        self.values[self.path] = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.end_headers()

    def do_GET(self) -> None:
        value = self.values.get(self.path)
        self.send_response(404 if value is None else 200)
        self.end_headers()
        self.wfile.write(value or b"")

    def log_message(self, *arguments: Any) -> None:
        pass


def of_mpirun() -> dict[str, str]:
    names = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "PMIX_NAMESPACE")
    return dict(zip(names, ("{rank}", "2", "2", uuid.uuid4().hex)))


def test_ranks_of_mpirun_find_each_other(launch: Any) -> None:
    assert launch(meet, 2, of_mpirun(), init=False) == [[0, "mpirun", 3.0], [1, "mpirun", 3.0]]


def test_a_rank_that_fails_does_not_leave_the_others_waiting(launch: Any) -> None:
    assert launch(fail_alone, 2, of_mpirun(), init=False, timeout=60) == ["RuntimeError", "ValueError"]


def where(rank: int, size: int) -> World:
    for name in ("RANK", "WORLD_SIZE"):
        os.environ.pop(name, None)
    return current()


def test_ranks_of_a_process_group_that_runs_already(launch: Any) -> None:
    assert launch(where, 2) == [World(rank, 2, rank, 2, "torch.distributed") for rank in (0, 1)]


def test_ranks_of_horovodrun_find_each_other(launch: Any) -> None:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), KeyValue)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    variables = {
        "HOROVOD_RANK": "{rank}",
        "HOROVOD_SIZE": "2",
        "HOROVOD_LOCAL_SIZE": "2",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1",
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(server.server_port),
    }
    try:
        assert launch(meet, 2, variables, init=False) == [[0, "horovodrun", 3.0], [1, "horovodrun", 3.0]]
    finally:
        server.shutdown()


def test_several_machines_without_an_address_say_what_to_give(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MASTER_ADDR", "HOROVOD_GLOO_RENDEZVOUS_ADDR", "OMPI_MCA_orte_hnp_uri"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match="-x MASTER_ADDR"):
        join(World(0, 4, 0, 2, "mpirun"), "gloo")


def test_the_machine_where_mpirun_was_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PMIX_NAMESPACE", "prterun-server-0-23307@1")
    assert world._head_node() == "server-0"
    monkeypatch.setenv("OMPI_MCA_orte_hnp_uri", "1184.0;tcp://10.0.0.5,10.1.0.5:39241")
    assert world._head_node() == "10.0.0.5"


# Data ---------------------------------------------------------------------------------------------------


def test_synthetic_data_of_any_shape() -> None:
    data = Synthetic([2, 5], num_classes=3, size=30, test_size=9, noise=0.5)
    x, y = data.train.batch(torch.tensor([4, 2]), None)
    assert x.shape == (2, 2, 5) and y.tolist() == [1, 2]
    again = Synthetic([2, 5], num_classes=3, size=30, test_size=9, noise=0.5)
    assert torch.equal(again.train.batch(torch.tensor([2, 4]), None)[0], x.flip(0))
    assert not torch.equal(data.test.batch(torch.tensor([4]), None)[0], x[:1])
    tokens, _ = Synthetic(16, tokens=50).train.batch(torch.arange(8), None)
    assert tokens.shape == (8, 16) and tokens.dtype == torch.int64 and tokens.min() >= 0 and tokens.max() < 50
    with pytest.raises(ConfigError, match="shape"):
        Synthetic([])


def test_characters_predict_the_next(tmp_path: Path) -> None:
    text = "To be, or not to be: that is the question.\n" * 40 + "café"
    (tmp_path / "text.txt").write_text(text)
    data = Characters(16, root=str(tmp_path / "text.txt"))
    x, y = data.train.batch(torch.tensor([0, 1]), None)
    assert bytes(x[0].tolist()).decode() == text[:16] and bytes(y[0].tolist()).decode() == text[1:17]
    shifted, _ = data.train.batch(torch.arange(len(data.train)), torch.Generator().manual_seed(1))
    assert shifted.shape == (len(data.train), 16) and not torch.equal(shifted[:2], x)
    for model in (lstm(width=8), transformer(width=12, layers=1, heads=2, length=16)):
        assert model(x).shape == (2, 16, 128)
    with pytest.raises(ConfigError, match="length=5000"):
        Characters(5000, root=str(tmp_path / "text.txt"))


def test_images_are_normalised_and_moved() -> None:
    data = Images("digits", augment=2)
    x, y = data.train.batch(torch.arange(500), None)
    assert x.shape == (500, 1, 8, 8) and abs(float(x.mean())) < 0.1 and y.shape == (500,)
    moved, _ = data.train.batch(torch.arange(500), torch.Generator().manual_seed(0))
    assert not torch.equal(moved, x)
    picture = torch.arange(1, 17, dtype=torch.uint8).view(1, 1, 4, 4).expand(64, 1, 4, 4)
    cut = _crop_and_flip(picture, 1, torch.Generator().manual_seed(0))
    # Unmoved, and unmoved but mirrored, both occur; every crop holds only the picture's pixels and padding.
    assert any(torch.equal(one, picture[0]) for one in cut)
    assert any(torch.equal(one, picture[0].flip(-1)) for one in cut)
    assert set(cut.unique().tolist()) <= set(range(17))
    with pytest.raises(ConfigError, match="num_classes=7"):
        Images("digits", num_classes=7)
    assert small_cnn(in_channels=1, width=4)(x[:2]).shape == (2, 10)


def test_images_from_a_folder(tmp_path: Path) -> None:
    for part in ("train", "val"):
        for number, kind in enumerate(("cat", "dog")):
            (tmp_path / part / kind).mkdir(parents=True)
            for place in range(3):
                picture = Image.new("RGB", (40 + 8 * place, 30), (200 * number, 100, 50))
                picture.save(tmp_path / part / kind / f"{place}.png")
    data = ImageFolder(str(tmp_path), image_size=16, num_classes=2)
    x, y = data.test.batch(torch.arange(6), None)
    assert x.shape == (6, 3, 16, 16) and y.tolist() == [0, 0, 0, 1, 1, 1]
    assert x[3:, 0].mean() > x[:3, 0].mean() + 1
    augmented, _ = data.train.batch(torch.arange(6), torch.Generator().manual_seed(0))
    assert torch.allclose(augmented, x, atol=1e-5)
    with pytest.raises(ConfigError, match="holds 2 folders"):
        ImageFolder(str(tmp_path), num_classes=3)
    with pytest.raises(ConfigError, match="neither"):
        ImageFolder(str(tmp_path / "train"), num_classes=2)


def test_batches_are_shared_out_and_come_again() -> None:
    data = Synthetic([3], size=50)

    def samples(rank: int, epoch: int, start: int = 0, threads: int = 0) -> list[torch.Tensor]:
        batches = Batches(data.train, 4, 2, World(rank, 3, rank, 3), seed=1, threads=threads)
        assert batches.steps == 2
        return [x for step in batches.epoch(epoch, start) for x, _ in step]

    everything = torch.cat([x for rank in range(3) for x in samples(rank, 0)])
    assert len(everything.unique(dim=0)) == 48
    assert not torch.equal(samples(0, 0)[0], samples(0, 1)[0])
    for threads in (0, 2):
        for one, two in zip(samples(1, 3)[2:], samples(1, 3, start=1, threads=threads)):
            assert torch.equal(one, two)
    tested = [len(x) for rank in range(3) for x, _ in once(data.test, 100, World(rank, 3, rank, 3))]
    assert sum(tested) == 1024
    with pytest.raises(ConfigError, match="50 samples make no step"):
        Batches(data.train, 26, 1, World(0, 2, 0, 2), 0)


# Learning rate ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (
            CosineAnnealingLR(T_max=7, eta_min=0.01),
            lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 7, 0.01),
        ),
        (MultiStepLR([2, 5], gamma=0.5), lambda o: torch.optim.lr_scheduler.MultiStepLR(o, [2, 5], 0.5)),
        (StepLR(3), lambda o: torch.optim.lr_scheduler.StepLR(o, 3)),
    ],
)
def test_schedules_are_those_of_torch(ours: Any, theirs: Any) -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.4)
    scheduler = theirs(optimizer)
    for epoch in range(7):
        assert ours.rate(0.4, epoch) == pytest.approx(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()


def test_warm_up_then_schedule_by_epochs_or_steps() -> None:
    by_epoch = LearningRate(0.1, 4, MultiStepLR([1]), warmup_epochs=2, steps_per_epoch=10)
    assert [by_epoch(0), by_epoch(10), by_epoch(20), by_epoch(29)] == pytest.approx([0.1, 0.25, 0.4, 0.4])
    assert by_epoch(30) == pytest.approx(0.04)
    by_step = LearningRate(0.1, 4, CosineAnnealingLR(2), warmup_epochs=2, steps_per_epoch=10, per_epoch=False)
    assert by_step(25) < by_step(24) < 0.4 and by_step(30) == pytest.approx(0.2)


# Log ----------------------------------------------------------------------------------------------------


def test_log_drops_what_will_be_written_again(tmp_path: Path) -> None:
    log = logs.Log(tmp_path, 0, tensorboard=False)
    for step in (1, 2, 3):
        log.write(step, {"loss": step / 2}, epoch=0)
    log.close()
    with open(log.path, "a") as file:
        file.write('{"step": 4, "lo')  # killed while it wrote
    logs.Log(tmp_path, 2, tensorboard=False).close()
    assert logs.read(log.path) == [{"step": s, "epoch": 0, "loss": s / 2} for s in (1, 2)]
    assert all(json.loads(line) for line in log.path.read_text().splitlines())


def test_tensorboard_gets_the_scalars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    class SummaryWriter:
        def __init__(self, folder: str, purge_step: int) -> None:
            seen.append((Path(folder).name, purge_step))

        def add_scalar(self, name: str, value: float, step: int) -> None:
            seen.append((name, value, step))

        def close(self) -> None:
            seen.append("closed")

    module = types.ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = SummaryWriter  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    log = logs.Log(tmp_path, 7)
    log.write(8, {"loss/train": 0.5}, epoch=1)
    log.close()
    assert seen == [("tensorboard", 8), ("loss/train", 0.5, 8), "closed"]


def test_tensorboard_that_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    logs.Log(tmp_path, 0).close()
    with pytest.raises(MissingExtraError, match=r"grace-dl\[train\]"):
        logs.Log(tmp_path, 0, tensorboard=True)
