"""Profiles: recorded from training, saved, read, and made from figures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import grace_dl as grace
from grace_dl.bench.profiling import profile_workload
from grace_dl.bench.workload import Workload
from grace_dl.errors import ConfigError
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
    "figures", [{"parameters": 0, "backward": 1.0}, {"parameters": 10, "backward": -1.0}]
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
    ],
)
def test_damaged_profiles_are_rejected(change: dict[str, object], message: str, tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    Profile.from_figures(parameters=10, backward=1.0).save(path)
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(ConfigError, match=message):
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
