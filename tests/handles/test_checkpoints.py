"""Checkpoints of all ranks: one file per rank, and through `torch.distributed.checkpoint`; on any number of ranks."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor

import grace_dl as grace
from grace_dl.errors import StateError
from handles.targets import SHAPES, DDPTarget, OptimizerTarget, Target, gradients

METHOD = "by_parameter(other.*=powersgd:2; layer.weight=int8:memory=residual,communicator=alltoall; default=topk:0.1)"


def trained(rank: int, make: type[Target] = DDPTarget, steps: int = 3) -> Target:
    target = make(METHOD)
    for step in range(steps):
        target.step(gradients(rank, step))
    return target


def unsent(handle: grace.Handle) -> dict[str, Tensor]:
    """The average over ranks of what was not sent."""
    found = {}
    for name, shape in SHAPES.items():
        residual = handle.session.residual(name)
        mine = torch.zeros(shape).view(-1) if residual is None else residual.view(-1).clone()
        if torch.distributed.is_initialized():
            torch.distributed.all_reduce(mine)
        found[name] = mine / handle.session.transport.size
    return found


def saving(rank: int, world: int, folder: str, through_dcp: bool) -> Any:
    handle = trained(rank).handle
    if through_dcp:
        dcp.save({"grace": grace.stateful(handle)}, checkpoint_id=folder)
    else:
        grace.save(handle, folder)
    return unsent(handle), handle.state_dict()["digest"]


def loading(rank: int, world: int, folder: str, through_dcp: bool) -> Any:
    target = DDPTarget(METHOD)
    if through_dcp:
        dcp.load({"grace": grace.stateful(target.handle, folder)}, checkpoint_id=folder)
    else:
        grace.load(target.handle, folder)
    found = unsent(target.handle), target.handle.state_dict()["digest"]
    return (*found, target.step(gradients(rank, 3))["layer.weight"])


@pytest.mark.parametrize("through_dcp", [False, True], ids=["files", "dcp"])
def test_any_number_of_ranks(launch: Any, tmp_path: Path, through_dcp: bool) -> None:
    saved = launch(saving, 2, str(tmp_path), through_dcp)
    assert saved[0][1] != saved[1][1], "ranks have the same state, so this test shows nothing"
    same = launch(loading, 2, str(tmp_path), through_dcp)
    assert [digest for _, digest, _ in same] == [digest for _, digest in saved]
    for world in (3, 1):
        found = launch(loading, world, str(tmp_path), through_dcp)
        for name, expected in saved[0][0].items():
            assert torch.allclose(found[0][0][name], expected, rtol=1e-5, atol=1e-6), (world, name)
        assert all(torch.equal(found[0][2], result) for _, _, result in found)


def saving_twice(rank: int, world: int, folder: str) -> list[str]:
    grace.save(trained(rank, OptimizerTarget, 1).handle, folder)
    return sorted(path.name for path in Path(folder).iterdir())


def test_files_of_other_numbers_of_ranks_are_removed(launch: Any, tmp_path: Path) -> None:
    launch(saving_twice, 3, str(tmp_path))
    launch(saving_twice, 2, str(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["grace-rank0-of-2.pt", "grace-rank1-of-2.pt"]


def saving_where_one_cannot(rank: int, world: int, folder: str) -> tuple[str, float]:
    handle = trained(rank).handle
    begin = time.monotonic()
    with pytest.raises((OSError, StateError)) as caught:
        grace.save(handle, folder if rank != 1 else f"{folder}/a file/folder")
    seconds = time.monotonic() - begin
    grace.save(handle, folder)
    return f"{type(caught.value).__name__}: {caught.value}", seconds


def test_a_rank_that_cannot_save_is_reported_on_every_rank(launch: Any, tmp_path: Path) -> None:
    (tmp_path / "a file").write_text("")
    found = launch(saving_where_one_cannot, 3, str(tmp_path), group_timeout=30)
    assert found[1][0].startswith("NotADirectoryError")
    for rank in (0, 2):
        text, seconds = found[rank]
        assert (
            "is not complete" in text and "rank 1" in text and "Not a directory" in text and seconds < 15
        ), text


def refused(rank: int, world: int, folder: str) -> str:
    target = trained(rank, OptimizerTarget, 1)
    before = target.handle.state_dict()["digest"]
    with pytest.raises(StateError) as error:
        grace.load(target.handle, folder)
    assert target.handle.state_dict()["digest"] == before
    return str(error.value)


def test_what_cannot_be_loaded_is_refused_on_every_rank(launch: Any, tmp_path: Path) -> None:
    """Nothing there; saved by rank 0 alone; of different steps; damaged on one rank."""
    folder = str(tmp_path)
    assert all("found: none" in said for said in launch(refused, 2, folder))
    launch(saving_twice, 2, folder)
    _, second = (tmp_path / f"grace-rank{rank}-of-2.pt" for rank in range(2))
    content = second.read_bytes()
    second.unlink()
    for said in launch(refused, 2, folder):
        assert "ranks [0] of 2" in said and "every rank must save" in said
    second.write_bytes(content[: len(content) // 2])
    said = launch(refused, 2, folder)
    assert "disagree" in said[0] and "cannot be loaded" in said[0] and "rank1-of-2 cannot be read" in said[1]
    other = tmp_path / "other"
    launch(saving, 2, str(other), False)
    second.write_bytes((other / "grace-rank1-of-2.pt").read_bytes())
    assert all("disagree" in said for said in launch(refused, 2, folder))


def loading_with_another_method(rank: int, world: int, folder: str) -> None:
    """Residuals carry over; the handle keeps its method."""
    first = trained(rank)
    expected = unsent(first.handle)
    grace.save(first.handle, folder)
    second = DDPTarget("none")
    grace.load(second.handle, folder)
    assert str(second.handle.method) == "none"
    for name, found in unsent(second.handle).items():
        assert torch.allclose(found, expected[name], rtol=1e-5, atol=1e-6), name


def test_another_method(launch: Any, tmp_path: Path) -> None:
    launch(loading_with_another_method, 2, str(tmp_path))


def failing_with_another_method(rank: int, world: int, folder: str, method: str) -> None:
    """A state of the right kind, of a parameter that is not here."""
    strange = grace.manual("topk:0.01")
    strange.step(torch.randn(5000), "strange")
    grace.save(strange, folder)
    target = DDPTarget(method)
    for step in range(3):
        target.step(gradients(rank, step))
    wanted, before = target.handle.method, target.handle.state_dict()["digest"]
    with pytest.raises(StateError, match="strange"):
        grace.load(target.handle, folder)
    assert target.handle.method == wanted and target.handle.state_dict()["digest"] == before
    target.step(gradients(rank, 3))


@pytest.mark.parametrize("method", ["topk:0.1,memory=ef21", "signum", "powersgd:2"])
def test_a_state_of_another_method_that_cannot_be_loaded_changes_nothing(
    launch: Any, tmp_path: Path, method: str
) -> None:
    launch(failing_with_another_method, 2, str(tmp_path), method)
