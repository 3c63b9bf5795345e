"""Config objects, config files and the command line: what they set, and what they reject."""

from __future__ import annotations

import argparse
import json
import pickle
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from grace_dl.compat.dgc import DGCSGD, DGCCompressor, DGCSGDMemory
from grace_dl.errors import ConfigError
from grace_dl.train import Config, TrainConfig, later
from grace_dl.train import files as config_files
from grace_dl.train.datasets import Synthetic
from grace_dl.train.main import add_arguments, config_of
from grace_dl.train.models import mlp
from grace_dl.train.overrides import Text, split
from grace_dl.train.schema import Settings

MODELS = [
    "cifar/resnet20",
    "cifar/resnet110",
    "cifar/vgg16",
    "cifar/small",
    "imagenet/resnet18",
    "imagenet/resnet50",
]
MODELS += ["imagenet/vgg16_bn", "lm/lstm", "lm/transformer", "synthetic"]
FRAGMENTS = ["wm0", "wm5", "wm5o", "fp16", "int32", "mm", "nm"]


def load(*names: str, overrides: dict[str, Any] | None = None) -> Settings:
    return TrainConfig.from_files([f"configs/{name}.py" for name in names], overrides=overrides).settings


# The shipped files --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_every_shipped_config_loads_and_builds(name: str) -> None:
    found = load(name)
    with torch.device("meta"):
        model = found.model()
    optimizer = found.train.optimizer(model.parameters())
    assert optimizer.param_groups[0]["momentum"] == 0.9
    assert json.loads(json.dumps(found.plain()))["model"]["()"].startswith("grace_dl.train.models")
    if found.train.scheduler is not None:
        assert found.train.scheduler().rate(1.0, 1e9) < 0.01


@pytest.mark.parametrize("fragment", FRAGMENTS)
def test_every_fragment_loads_and_builds(fragment: str) -> None:
    found = load("cifar/resnet20", f"dgc/{fragment}")
    assert isinstance(found.train.compression, Config)
    compression = found.train.compression()
    assert isinstance(compression, DGCCompressor) and isinstance(compression.memory, DGCSGDMemory)
    assert found.train.dgc and found.train.optimizer.target is DGCSGD
    assert compression.memory.momentum == 0.9
    expected = {
        "wm0": compression.warmup_compress_ratio(0) == 0.001,
        "wm5": [compression.warmup_compress_ratio(e) for e in range(6)]
        == [0.25, 0.063, 0.015, 0.004, 0.001, 0.001],
        "wm5o": [compression.warmup_compress_ratio(e) for e in (0, 4, 5)] == [1, 1, 0.001],
        "fp16": compression.fp16_values,
        "int32": compression.int32_indices,
        "mm": compression.memory.momentum_masking,
        "nm": not compression.memory.momentum_masking,
    }
    assert expected[fragment]


def test_shared_parts_run_once_and_fragments_add_up() -> None:
    found = load("cifar/resnet20", "dgc/wm5", "dgc/fp16", "dgc/int32", "dgc/nm")
    compression: Any = found.train.compression
    assert (compression.warmup_epochs, compression.fp16_values, compression.int32_indices) == (5, True, True)
    assert found.train.optimizer.weight_decay == 1e-4 and found.train.optimizer.lr == 0.1


def test_later_values_depend_on_overrides() -> None:
    def t_max(**more: Any) -> float:
        scheduler = load("cifar/resnet20", **more).train.scheduler
        assert scheduler is not None
        return scheduler.T_max

    assert t_max() == 195
    assert t_max(overrides={"train.num_epochs": 500}) == 495
    # Nesterov set on the optimizer reaches the memory.
    more = {"train.optimizer.nesterov": True, "train.optimizer.momentum": 0.8}
    found = load("cifar/resnet20", "dgc/wm0", overrides=more)
    assert isinstance(found.train.compression, Config)
    memory = found.train.compression().memory
    assert (memory.nesterov, memory.momentum) == (True, 0.8)


def test_clipping_moves_into_the_memory_with_dgc() -> None:
    assert load("lm/lstm").train.clip_grad_norm == 1.0
    found = load("lm/lstm", "dgc/wm5")
    assert found.train.clip_grad_norm is None and isinstance(found.train.compression, Config)
    assert found.train.compression().memory.gradient_clipping == 1.0


def test_files_are_found_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert config_files.locate("configs/cifar/resnet20.py").is_file()
    assert config_files.locate("cifar/resnet20.py").is_file()
    (tmp_path / "mine.py").write_text("from grace_dl.train import configs\nconfigs.seed = 7\n")
    assert config_files.load(["mine.py"]).seed == 7
    with pytest.raises(ConfigError, match=r"did you mean 'configs/cifar/resnet20\.py'"):
        config_files.locate("configs/cifar/resnet21.py")


def test_a_tree_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "configs" / "mine"
    folder.mkdir(parents=True)
    (tmp_path / "configs" / "__init__.py").write_text(
        "from grace_dl.train import configs\nconfigs.seed = 1\n"
    )
    (folder / "__init__.py").write_text("from grace_dl.train import configs\nconfigs.seed *= 10\n")
    (folder / "a.py").write_text("from grace_dl.train import configs\nconfigs.seed += 5\n")
    monkeypatch.chdir(tmp_path)
    assert config_files.load(["configs/mine/a.py"]).seed == 15


def test_the_config_file_in_the_guide(root: Path, tmp_path: Path) -> None:
    (shown,) = re.findall(
        r"^```py\n(.*?)^```", (root / "docs" / "dgc.md").read_text(), re.DOTALL | re.MULTILINE
    )
    (tmp_path / "mine.py").write_text(shown)
    config = TrainConfig.from_files(["configs/cifar/small.py", tmp_path / "mine.py"])
    assert config.settings.model.width == 64 and config.folder.name.endswith("mine")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("configs.train.num_epoch = 5", "did you mean 'num_epochs'"),
        ("configs.trian.num_epochs = 5", "did you mean 'train'"),
        ("configs.train.num_epochs = 0", "1 or more"),
        ("configs.train.batch_size = 2.5", "whole number"),
        ("configs.train.dgc = 'yes'", "True or False"),
        ("configs.model = 3", "a Config of a model"),
        ("configs.train.engine = 'mpi'", "ddp, reducer"),
        ("configs.train.optimizer = Config(SGD, lr=1, momentun=0.9)", "did you mean 'momentum'"),
        ("configs.train.optimizer.lr = 1", "NoneType"),
        ("1 / 0", "ZeroDivisionError"),
    ],
)
def test_a_mistake_in_a_file_is_named_with_its_line(tmp_path: Path, line: str, said: str) -> None:
    path = tmp_path / "wrong.py"
    path.write_text(f"from torch.optim import SGD\nfrom grace_dl.train import Config, configs\n\n{line}\n")
    with pytest.raises(ConfigError, match=said) as caught:
        config_files.load([str(path)])
    assert f"{path}, line 4" in str(caught.value)


# Objects ------------------------------------------------------------------------------------------------


def test_two_configs_share_nothing() -> None:
    """Also values that are computed last, which refer to the tree of their file."""
    one = load("cifar/resnet20", "dgc/wm5", overrides={"train.num_epochs": 30})
    two = load("synthetic")
    again = load("cifar/resnet20", overrides={"train.num_epochs": 40})
    assert one.train.scheduler is not None and again.train.scheduler is not None
    assert (one.train.scheduler.T_max, again.train.scheduler.T_max) == (25, 35)
    assert one.train.compression is not None and again.train.compression is None
    assert two.train.scheduler is None and two.train.topk is not one.train.topk


def test_configs_exists_only_while_a_file_runs() -> None:
    load("synthetic")
    with pytest.raises(ConfigError, match=r"TrainConfig\.from_files"):
        from grace_dl.train import configs  # noqa: F401


def test_a_config_cannot_be_changed() -> None:
    found = load("synthetic")
    for change in (
        lambda: setattr(found, "seed", 3),
        lambda: setattr(found.train, "num_epochs", 3),
        lambda: setattr(found.model, "width", 3),
    ):
        with pytest.raises(ConfigError, match="built already"):
            change()


def test_overrides_may_be_groups() -> None:
    """A config of Python objects alone; what the caller gave stays the caller's."""
    model = Config(mlp, shape=[4], num_classes=3)
    model.width = later(lambda: 16)
    given: dict[str, Any] = {
        "dataset": Config(Synthetic, shape=[4], num_classes=3),
        "model": model,
        "train.optimizer": Config(torch.optim.SGD, lr=0.1),
        "train.topk": [1],
    }
    config = TrainConfig.from_files([], overrides=given)
    given["train.topk"].append(3)
    assert config.settings.model.width == 16 and config.settings.train.topk == [1]
    model.width = 32
    again = pickle.loads(pickle.dumps(config.with_overrides({"model": model, "train.compression": None})))
    assert again.settings.train.topk == [1]
    assert again.settings.model.width == 32 and config.settings.model.width == 16
    # A text from Python is a text, whatever it looks like.
    assert config.with_overrides({"train.save_path": "12"}).folder == Path("12")
    with pytest.raises(ConfigError, match="a Config of a model"):
        config.with_overrides({"train.optimizer": model, "model": 3})


def test_a_config_goes_to_other_processes_with_what_its_files_define(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from torch import nn\nfrom grace_dl.train import Config, configs\n"
        "class Net(nn.Sequential):\n"
        "    def __init__(self, width):\n"
        "        super().__init__(nn.Flatten(), nn.Linear(3072, width), nn.Linear(width, 10))\n"
        "configs.model = Config(Net, width=4)\n"
    )
    config = TrainConfig.from_files(
        ["configs/synthetic.py", tmp_path / "mine.py"], overrides={"model.width": 5}, suffix=".x"
    )
    again = pickle.loads(pickle.dumps(config))
    assert again == config and again.settings.plain() == config.settings.plain()
    assert sum(p.numel() for p in again.settings.model().parameters()) == 3073 * 5 + 6 * 10


@pytest.mark.parametrize(
    ("names", "overrides", "said"),
    [
        (["dgc/wm5"], {}, "configs.dataset is not set"),
        (["synthetic"], {"device": "tpu"}, "auto, cpu, gpu"),
        (["synthetic"], {"train.metric": "accuracy"}, "measured: loss/test"),
        (["synthetic"], {"train.dgc": True}, "configs/dgc/wm5.py"),
        (["synthetic", "grace"], {"train.compression": "tpok"}, "topk"),
        (["synthetic", "dgc/wm5"], {"train.compression.compress_ratio": 0}, "compress_ratio=0"),
        (["cifar/resnet20"], {"train.num_epochs": 5}, "T_max=0"),
        (["synthetic"], {"train.scheduler": Config(torch.optim.lr_scheduler.StepLR)}, "could not be built"),
    ],
)
def test_a_config_that_cannot_run_is_rejected_when_built(
    names: list[str], overrides: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        load(*names, overrides=overrides)


def test_the_folder_of_a_run(tmp_path: Path) -> None:
    files = ["configs/synthetic.py", "configs/dgc/wm5.py"]
    assert TrainConfig.from_files(files, suffix=".a").folder == Path("runs/synthetic+dgc.wm5.a")
    assert TrainConfig.from_files(files, folder=tmp_path).folder == tmp_path
    with pytest.raises(ConfigError, match="both given"):
        TrainConfig.from_files(files, folder=tmp_path, suffix=".a")


# The command line ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "text", "value"),
    [
        ("train.num_epochs", "500", 500),
        ("train.optimizer.lr", "1e-2", 0.01),
        ("train.optimizer.nesterov", "True", True),
        ("train.metric", "acc/test_top5", "acc/test_top5"),
        ("train.save_path", "12", "12"),
        ("device", "0,1", "0,1"),
        ("device", "0", "0"),
        ("device", "CPU", "CPU"),
        ("train.topk", "[1, 3]", [1, 3]),
        ("train.num_steps", "None", None),
        ("train.compression.warmup_coeff", "[0.5, 0.1, 0.1, 0.1, 0.1]", [0.5, 0.1, 0.1, 0.1, 0.1]),
        ("train.compression.compress_ratio", "0.01", 0.01),
        ("train.compression.memory.momentum_masking", "False", False),
        ("model.num_classes", "7", 7),
    ],
)
def test_overrides(path: str, text: str, value: Any) -> None:
    group: Any = load("cifar/resnet20", "dgc/wm5", overrides={path: Text(text)})
    for name in path.split("."):
        group = group[name]
    assert group == value and type(group) is type(value)


@pytest.mark.parametrize(
    ("path", "text", "said"),
    [
        ("train.num_epoch", "5", "did you mean 'num_epochs'"),
        ("trian.num_epochs", "5", "did you mean 'train'"),
        ("train.num_epochs", "many", "whole number"),
        ("train.num_epochs", "-3", "1 or more"),
        ("train.num_epochs", "True", "whole number"),
        ("train.optimizer.lr", "fast", "at present"),
        ("train.optimizer.momentum", "True", "at present"),
        ("train.optimizer.lrr", "1", "did you mean 'lr'"),
        ("train.compression.compression_ratio", "1", "did you mean 'compress_ratio'"),
        ("train.compression.memory.momentum_mask", "1", "did you mean 'momentum_masking'"),
        ("model", "resnet110", "group of settings"),
        ("model.nums", "1", "unknown setting configs.model.nums of resnet20"),
        ("train.num_epochs.x", "1", "not a group"),
    ],
)
def test_wrong_overrides_are_rejected(path: str, text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load("cifar/resnet20", "dgc/wm5", overrides={path: Text(text)})


def test_a_compression_can_be_removed() -> None:
    found = load("synthetic", "grace", overrides={"train.compression": Text("None")})
    assert found.train.compression is None


def test_values_are_parsed_and_never_run(tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    code = f"__import__('pathlib').Path({str(trap)!r}).touch()"
    with pytest.raises(ConfigError):
        load("cifar/resnet20", overrides={"train.num_epochs": Text(code)})
    assert load("cifar/resnet20", overrides={"train.save_path": Text(code)}).train.save_path == code
    assert not trap.exists()


def test_the_command_line_as_people_write_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    line = (
        "--configs configs/cifar/resnet20.py configs/dgc/wm5.py --configs.train.num_epochs 500 --suffix .e500"
    )
    parsed = parser.parse_args([*line.split(), "--configs.seed=3", "--evaluate", "--devices", "cpu"])
    config = config_of(parsed)
    found = config.settings
    assert (found.train.num_epochs, found.seed, found.device, config.evaluate_only) == (500, 3, "cpu", True)
    assert config.folder == Path("runs/cifar.resnet20+dgc.wm5.e500")
    with pytest.raises(SystemExit):
        parser.parse_args([*line.split(), "--configs.seed"])
    with pytest.raises(SystemExit):
        parser.parse_args([*line.split(), "--sufix", "x"])
    assert split(["--configs.a", "-1"]) == ([], {"a": "-1"})


def test_groups_show_and_build_themselves() -> None:
    group = Config(dict, a=1)
    assert group() == {"a": 1} and "a=1" in repr(group) and "a" in group and group.get("b", 2) == 2
    with pytest.raises(ConfigError, match="builds nothing"):
        Config()()
    with pytest.raises(ConfigError, match="could not be built"):
        Config(DGCSGD)([torch.nn.Parameter(torch.zeros(1))])
    with pytest.raises(ConfigError, match="not set yet"):
        _ = Config(DGCSGD).lr


def test_a_folder_that_no_system_can_make_is_rejected() -> None:
    wrong: list[dict[str, Any]] = [{"folder": "a\0b"}, {"suffix": "a\0b"}]
    for settings in wrong:
        with pytest.raises(ConfigError, match="null character"):
            TrainConfig.from_files(["configs/synthetic.py"], **settings)
