"""Profiles: recorded from training, saved, read, and made from figures."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import grace_dl as grace
from grace_dl.bench.profiling import profile_workload
from grace_dl.bench.workload import Workload
from grace_dl.errors import ConfigError
from grace_dl.plan import recorder
from grace_dl.plan.profile import Profile
from grace_dl.plan.recorder import WARM_UP


def net() -> nn.Sequential:
    frozen = nn.Linear(8, 16)
    frozen.requires_grad_(False)
    return nn.Sequential(frozen, nn.ReLU(), nn.Linear(16, 16), nn.BatchNorm1d(16), nn.Linear(16, 4))


def train(model: nn.Module, steps: int) -> None:
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(8, 8)).square().mean().backward()
        optimizer.step()
        with torch.no_grad():
            model(torch.randn(8, 8))


def test_training_is_recorded_in_the_order_of_backward(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, path = net(), tmp_path / "made" / "profile.json"
    recorder = grace.profile(model, path, steps=4)
    train(model, 3 + WARM_UP)
    assert recorder.profile is None and not path.exists()
    train(model, 2)
    found = Profile.load(path)
    assert found == recorder.profile
    assert str(path) in capsys.readouterr().out
    names = [parameter.name for parameter in found.parameters]
    assert sorted(names) == sorted(name for name, p in model.named_parameters() if p.requires_grad)
    assert names.index("4.weight") < names.index("2.weight")
    assert found.forward > 0 and found.backward >= found.parameters[-1].ready > 0 and found.update > 0
    assert not model._forward_hooks and not model._forward_pre_hooks


def record_ddp(rank: int, world: int, folder: str) -> list[str]:
    torch.manual_seed(0)
    model = DistributedDataParallel(net())
    recorder = grace.profile(model, Path(folder) / f"{rank}.json", steps=2)
    train(model, 2 + WARM_UP)
    assert recorder.profile is not None
    return [parameter.name for parameter in recorder.profile.parameters]


def test_a_ddp_model_is_recorded_by_every_rank_and_written_by_the_first(launch, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    names, others = launch(record_ddp, 2, str(tmp_path))
    assert sorted(names) == sorted(others) and "2.weight" in names
    assert [path.name for path in tmp_path.iterdir()] == ["0.json"]


def test_recording_can_stop_early() -> None:
    model = net()
    grace.profile(model, None).close()
    train(model, 1)
    assert not model._forward_hooks


def test_models_without_gradients_are_rejected() -> None:
    with pytest.raises(ConfigError, match="no parameters that require gradients"):
        grace.profile(nn.ReLU(), None)
    with pytest.raises(ConfigError, match=r"takes a torch\.nn\.Module"):
        grace.profile("resnet50", None)  # type: ignore[arg-type]


def test_a_workload_is_profiled_here() -> None:
    found = profile_workload(Workload("small-shapes"), steps=1)
    assert found.model == "small-shapes" and len(found.parameters) == 24


def test_figures_make_a_profile() -> None:
    found = Profile.from_figures(parameters=3_000_000, backward=0.3)
    assert found.numel == 3_000_000 and found.forward == pytest.approx(0.15)
    assert found.parameters[-1].ready == pytest.approx(0.3)
    assert Profile.from_figures(parameters=1e12, backward=1.0).numel == 10**12
    changed = found.with_times(backward=0.6)
    assert changed.parameters[-1].ready == pytest.approx(0.6) and changed.forward == found.forward


@pytest.mark.parametrize(
    "figures",
    [
        {"parameters": 1e13, "backward": 1.0},
        {"parameters": 0, "backward": 1.0},
        {"parameters": 10, "backward": -1.0},
    ],
)
def test_impossible_figures_are_rejected(figures: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        Profile.from_figures(**figures)


def test_buckets_are_those_of_ddp() -> None:
    buckets = Profile.from_figures(parameters=20 * 2**20, backward=1.0).buckets()
    assert [len(bucket) for bucket in buckets] == [1, 7, 7, 5]  # 4 MiB matrices: 1 MiB first, then 25 MiB


@pytest.mark.parametrize(
    "change, message",
    [
        ({"grace_profile": 9}, "no profile of format"),
        ({"backward": "long"}, "damaged profile"),
        ({"parameters": [["w", [2], "float33", 0.1]]}, "damaged profile"),
        ({"parameters": []}, "no parameters"),
        ({"forward": -1}, "forward=-1"),
        ({"parameters": [["w", [2], "float32", 0.1]] * 2}, "names a parameter twice"),
        ({"parameters": None}, "parameters=None must be a list"),
        ({"parameters": [["w", [2], "float32"]]}, "must be a list of name, shape, dtype and time"),
        ({"parameters": [[7, [2], "float32", 0.1]]}, "must be a list of name"),
        ({"parameters": [{"a": 1, "b": 2, "c": 3, "d": 4}]}, "must be a list of name"),
        *(
            ({"parameters": [["w", shape, "float32", 0.1]]}, "the shape of 'w' is")
            for shape in ("23", [2.5], [True], [-2, -2], [0], [2**40, 2**40], 5, [[2]])
        ),
        *(
            ({"parameters": [["w", [2], kind, 0.1]]}, "the dtype of 'w' is")
            for kind in ("int64", "bool", "nn", "float33", 3, None)
        ),
        *(
            ({"parameters": [["w", [2], "float32", ready]]}, "the ready time of 'w'=")
            for ready in (-0.1, math.nan, math.inf, 10**400, "soon", True, None)
        ),
        *(({"update": time}, "update=") for time in (math.nan, math.inf, 10**400, True, "1.0")),
        ({"device": 3}, "device=3 must be text"),
        ({"origin": ["a"]}, "must be text"),
        ({"model": None}, "model=None must be text"),
    ],
)
def test_damaged_profiles_are_rejected(change: dict[str, object], message: str, tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    Profile.from_figures(parameters=10, backward=1.0).save(path)
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(ConfigError, match=re.escape(message)) as error:
        Profile.load(path)
    assert "\n" not in str(error.value) and "ConfigError" not in str(error.value)


@pytest.mark.parametrize("text", ["[" * 200_000, "\x00", "[]", '{"grace_profile": 1}'])
def test_other_files_are_no_profiles(text: str, tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"profile\.json is (no|a damaged) profile"):
        Profile.load(path)


def test_a_model_that_is_not_trained_is_named(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    recorder = grace.profile(net(), path, steps=2)
    with pytest.warns(UserWarning, match="give profile\\(\\) the model that is trained") as warned:
        train(net(), 3 * (2 + WARM_UP))
    assert len(warned) == 1 and "5 optimizer steps have passed" in str(warned[0].message)
    assert recorder.profile is None and not path.exists()
    recorder.close()


def test_a_second_model_does_not_disturb_a_profile(recwarn: pytest.WarningsRecorder) -> None:
    first, second = net(), net()
    recorder = grace.profile(first, None, steps=2)
    for _ in range(2 + WARM_UP):
        train(first, 1)
        train(second, 3)
    assert recorder.profile is not None and not recwarn.list


class Clock:
    """In place of the time module: each look takes a millisecond, and all else what tests say, however busy the machine."""

    def __init__(self) -> None:
        self.time = 100.0

    def perf_counter(self) -> float:
        self.time += 0.001
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += seconds


clock = Clock()


class Slow(nn.Module):
    """A model whose forward pass takes a known time."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.seconds = seconds

    def forward(self, x: Any) -> Any:
        clock.sleep(self.seconds)
        return self.layer(x)


def recorded(model: nn.Module, step: Any, steps: int = 3) -> Profile:
    """The profile of a training whose steps `step` computes."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with mock.patch.object(recorder, "time", clock):
        recording = grace.profile(model, None, steps=steps)
        for _ in range(steps + WARM_UP):
            step()
            optimizer.step()
    assert recording.profile is not None
    return recording.profile


def test_every_pass_of_gradient_accumulation_counts() -> None:
    model = Slow(0.02)

    def step() -> None:
        for _ in range(4):
            model(torch.ones(4, 8)).sum().backward()

    found = recorded(model, step)
    assert found.forward >= 0.08 and found.backward < 0.06
    assert 0 < found.parameters[-1].ready <= found.backward


def test_every_forward_pass_before_one_backward_pass_counts() -> None:
    model = Slow(0.02)
    found = recorded(model, lambda: (model(torch.ones(4, 8)) + model(torch.zeros(4, 8))).sum().backward())
    assert found.forward >= 0.04 > found.backward


def test_a_forward_pass_after_the_backward_pass_changes_nothing() -> None:
    model = Slow(0.02)

    def step() -> None:
        model(torch.ones(4, 8)).sum().backward()
        model(torch.ones(4, 8))

    found = recorded(model, step)
    assert found.forward >= 0.02 > found.backward


def record_accumulation(rank: int, world: int) -> float:
    model = DistributedDataParallel(Slow(0.02))

    def step() -> None:
        for last in (False, False, True):
            with contextlib.nullcontext() if last else model.no_sync():
                model(torch.ones(4, 8)).sum().backward()

    return recorded(model, step).forward


def test_passes_without_synchronization_count(launch) -> None:  # type: ignore[no-untyped-def]
    assert all(forward >= 0.06 for forward in launch(record_accumulation, 2))


class Named(nn.Module):
    """A model with a child called `module`."""

    def __init__(self) -> None:
        super().__init__()
        self.module = nn.Linear(8, 8)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Any) -> Any:
        return self.head(self.module(x))


@pytest.mark.parametrize("wrap", [lambda model: model, nn.DataParallel])
def test_models_are_unwrapped_by_type(wrap: Any) -> None:
    model = wrap(Named())
    found = recorded(model, lambda: model(torch.ones(4, 8)).sum().backward())
    names = {parameter.name for parameter in found.parameters}
    assert names == {"module.weight", "module.bias", "head.weight", "head.bias"} and found.model == "Named"


def test_a_compiled_model_has_the_names_of_the_original() -> None:
    model: Any = torch.compile(Named(), backend="eager")
    found = recorded(model, lambda: model(torch.ones(4, 8)).sum().backward())
    assert found.model == "Named" and "head.weight" in {parameter.name for parameter in found.parameters}


def test_empty_parameters_are_left_out(tmp_path: Path) -> None:
    model = net()
    model.register_parameter("empty", nn.Parameter(torch.ones(0, 4)))
    grace.profile(model, tmp_path / "p.json", steps=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(1 + WARM_UP):
        (model(torch.randn(8, 8)).square().mean() + model.empty.sum()).backward()  # type: ignore[operator, union-attr]
        optimizer.step()
    assert "empty" not in {parameter.name for parameter in Profile.load(tmp_path / "p.json").parameters}


@pytest.mark.parametrize("rank", ["0", "1"])
def test_paths_are_checked_before_training(
    rank: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", rank)
    (tmp_path / "file").touch()
    for path, message in (("", "must name a file"), (3, "must name a file"), (tmp_path, "is a folder")):
        with pytest.raises(ConfigError, match=message):
            grace.profile(net(), path)  # type: ignore[arg-type]
    unwritable = tmp_path / "file" / "profile.json"
    if rank == "0":
        with pytest.raises(ConfigError, match="cannot be written"):
            grace.profile(net(), unwritable)
    else:
        grace.profile(net(), unwritable).close()


def test_a_profile_that_cannot_be_written_does_not_end_training(tmp_path: Path) -> None:
    model, folder = net(), tmp_path / "made"
    folder.mkdir()
    recorder = grace.profile(model, folder / "profile.json", steps=1)
    os.rmdir(folder)
    folder.touch()  # a file in place of the folder
    with pytest.warns(UserWarning, match="cannot be written to"):
        train(model, 2 + WARM_UP)
    assert recorder.profile is not None
