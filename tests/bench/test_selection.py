"""What benchmarks compare: methods in their text form, and PyTorch's baselines beside them."""

from __future__ import annotations

import pytest

from grace_dl import catalog, parse
from grace_dl.bench import accuracy, kernels, step_benchmark, traffic
from grace_dl.bench.selection import BASELINES, bare, canonical, select
from grace_dl.bench.step_benchmark import candidates
from grace_dl.bench.step_worker import Candidate
from grace_dl.bench.training_methods import files_and_overrides, method_in
from grace_dl.errors import ConfigError
from grace_dl.train import TrainConfig


def test_lists_are_written_with_spaces_or_commas() -> None:
    expected = ["topk:0.01", "powersgd:4", "topk:0.1,beta=0.9"]
    for texts in (
        ["topk:0.01", "powersgd:rank=4", "topk:0.1,beta=0.9"],
        ["topk:0.01,powersgd:rank=4,topk:ratio=0.1,beta=0.9"],
        ["topk, powersgd topk:0.1,beta=0.9", "topk:ratio=0.01"],
    ):
        assert select(texts, default=[]) == expected


def test_baselines_come_first_unless_one_is_named() -> None:
    assert select(["topk"], default=[], beside=BASELINES) == ["ddp", "ddp-fp16", "topk:0.01"]
    for name in ("ssgd", "float32", "ddp"):
        assert select([name, name, "topk"], default=[], beside=BASELINES) == ["ddp", "topk:0.01"]
    assert select(None, default=["int8"], beside=["ddp", "bf16"]) == ["ddp", "bf16", "int8"]
    with pytest.raises(ConfigError, match="baseline"):
        select(["ddp-fp16"], default=[], beside=["ddp", "bf16"])


def test_all_names_every_method_once() -> None:
    found = select(["all"], default=step_benchmark.METHODS)
    assert {text.partition(":")[0] for text in found} == set(catalog.methods())
    assert len(found) == len(set(found)) and "topk:0.001" in found


@pytest.mark.parametrize(
    "default", [step_benchmark.METHODS, traffic.METHODS, accuracy.METHODS, kernels.default_methods()]
)
def test_defaults_are_methods(default: list[str]) -> None:
    assert len(select(default, default=[])) == len(default)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("powrsgd", "did you mean 'powersgd'"),
        ("powersgd:0", "rank=0"),
        ("topk:ratio=7", "ratio=7"),
        ("topk:rank=4", "rank"),
    ],
)
def test_wrong_methods_are_rejected_with_their_text(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as raised:
        canonical(text)
    assert str(raised.value).startswith(text)
    with pytest.raises(ConfigError, match="empty"):
        select([","], default=[])


def test_candidates() -> None:
    assert candidates(["ssgd", "powersgd:2"], ("ddp", "optimizer")) == [
        Candidate("ddp"),
        Candidate("powersgd:2", "ddp"),
        Candidate("powersgd:2", "optimizer"),
    ]
    with pytest.raises(ConfigError, match="--through"):
        candidates(["topk"], ["dpd"])
    assert candidates(["ssgd", "int4"], ["fsdp"]) == [
        Candidate("fsdp", "fsdp"),
        Candidate("ddp"),
        Candidate("int4", "fsdp"),
    ]
    with pytest.raises(ConfigError, match="cannot go through a reduce-scatter"):
        candidates(["topk"], ["fsdp"])
    assert {c.method for c in candidates(None, ["fsdp"])} >= {"none", "int4", "fsdp"}


def test_local_steps_are_candidates() -> None:
    rule = "local(int4; every=30; outer_lr=0.7; outer_momentum=0.9)"
    assert candidates(["ddp", "diloco"], ["ddp", "optimizer"]) == [
        Candidate("ddp"),
        Candidate(rule, "local"),
    ]
    assert bare(["diloco", "topk:0.1"]) == {"diloco": rule}
    with pytest.raises(ConfigError, match="not a method"):
        select(["diloco"], default=[])  # kernels and traffic have no steps
    files, overrides = files_and_overrides(rule)
    config = TrainConfig.from_files(["configs/synthetic.py", *files], overrides=overrides)
    assert method_in(config.settings.plain(), epoch_steps=10) == rule
    assert not config.settings.train.scale_lr


def test_training_settings_of_methods() -> None:
    assert files_and_overrides("ddp") == ([], {})
    for text in (
        "topk:0.1,communicator=broadcast",
        "dgc:0.1,memory=residual",
        "schedule(0=none; 5=topk:0.1)",
    ):
        assert files_and_overrides(text) == ([], {"train.compression": text})
    # Momentum is the method's, so the optimizer must be DGC's.
    for text in ("dgc:0.05,momentum=0.8", "schedule(0=none; 5=dgc:0.05,momentum=0.8)"):
        files, overrides = files_and_overrides(text)
        assert files == ["configs/dgc/wm0.py"]
        assert overrides["train.compression"] == text and overrides["train.optimizer.momentum"] == 0.8


def test_methods_of_saved_configs() -> None:
    def method(compression: object) -> str:
        return method_in({"train": {"compression": compression}}, epoch_steps=10)

    assert method(None) == "ddp" and method("powersgd:rank=2") == "powersgd:2"
    memory = {"()": "x.DGCSGDMemory", "momentum": 0.8, "nesterov": False, "gradient_clipping": None}
    dgc = {"()": "x.DGCCompressor", "compress_ratio": 0.05, "warmup_epochs": 2, "warmup_coeff": [0.2, 0.1]}
    found = method({**dgc, "warmup_steps": 0, "memory": memory})
    assert found == "dgc:0.05,warmup_stages=2,warmup_steps=10,warmup_coeff=[0.2,0.1],momentum=0.8"
    assert str(parse(found)) == found
    assert method({**dgc, "warmup_epochs": -1}) == "dgc:0.05"
