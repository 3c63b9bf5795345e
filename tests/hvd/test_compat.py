"""Lines of users' scripts, and classes of their own, under Horovod on two real processes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from hvd.cluster import launch


@pytest.fixture(scope="module")
def pytorch() -> Any:
    return launch(2, "compat_torch_cases", ["guide", "own", "deep_compression"])


@pytest.fixture(scope="module")
def tensorflow() -> Any:
    return launch(2, "compat_tf_cases", ["guide", "steps", "own"])


def test_the_guide_of_pytorch(pytorch: Any) -> None:
    results = [weights for of_rank in pytorch["guide"] for weights in of_rank]
    assert len(results) == 8 and all(torch.equal(results[0], other) for other in results)


def test_an_exchange_of_ones_own(pytorch: Any) -> None:
    one, two = pytorch["own"]
    assert torch.equal(one["own"], two["own"])
    assert torch.allclose(one["own"], one["horovod"], atol=1e-5)


def test_the_training_script_of_dgc(pytorch: Any) -> None:
    (one, ratio, smaller), (two, _, _) = pytorch["deep_compression"]
    assert torch.equal(one, two) and ratio == 0.05 and smaller > 1


def test_the_guide_of_tensorflow(tensorflow: Any) -> None:
    runs = [steps for of_rank in tensorflow["guide"] for steps in of_rank]
    for steps in runs[1:]:
        assert all(np.array_equal(a, b) for a, b in zip(steps, runs[0]))
    assert 600 <= np.count_nonzero(runs[0][0]) <= 1200


def test_single_steps_of_tensorflow(tensorflow: Any) -> None:
    for of_rank in tensorflow["steps"]:
        assert all(np.allclose(result, 1.5) for result in of_rank)


def test_classes_of_ones_own_with_operations_of_tensorflow(tensorflow: Any) -> None:
    one, two = tensorflow["own"]
    for kind, steps in one.items():
        assert all(np.array_equal(a, b) for a, b in zip(steps, two[kind])), kind
    signs = ("all", "compressor and communicator", "in a graph")
    for kind, same in [
        *((kind, "compressor and memory") for kind in signs),
        ("memory", "built-in"),
        ("communicator", "built-in"),
    ]:
        assert all(np.allclose(a, b, atol=1e-5) for a, b in zip(one[kind], one[same])), kind
