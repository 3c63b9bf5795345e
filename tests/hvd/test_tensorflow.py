"""Horovod with TensorFlow 2 and both Keras, on two and three real processes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from contract.cases import CASES, VOTES, bits_equal, run
from grace_dl import catalog
from hvd.cluster import launch
from hvd.steps import NAME, STEPS, sequence

FUNCTIONS = [
    "crossing", "contract", "fit", "all_methods", "options", "tape", "refused", "xla", "loss_scale", "saving", "disable",
]  # fmt: skip


@pytest.fixture(scope="module", params=[2, 3])
def ranks(request):
    return launch(request.param, "tf_cases", FUNCTIONS, timeout=1100)


@pytest.fixture(scope="module")
def expected():
    """The same gradients in a simulated world, made once a size and case."""
    made = {}

    def simulate(size, case):
        if (size, case) not in made:
            made[size, case] = run(size, case, [sequence(r, size) for r in range(size)], NAME)
        return made[size, case]

    return simulate


def alike(values):
    return all(bits_equal(values[0], other) for other in values[1:])


def test_tensors_cross_without_copies(ranks):
    for answer in ranks["crossing"]:
        assert all(answer.values()), answer


@pytest.mark.parametrize("case", CASES, ids=str)
def test_contract(ranks, expected, case):
    """As through PyTorch: identical replicas, the bits of the simulated world, state, a step that is not finite."""
    answers = [answer[str(case)] for answer in ranks["contract"]]
    results, handles = expected(ranks.size, case)
    exact = ranks.size == 2 or case.communicator != "allreduce"
    # Sums of whole buckets carry no flags: what is not finite shows in the result, where it is.
    whole = handles[0].session.whole_buckets and case.memory == "none" and case.communicator == "allreduce"
    for step in range(STEPS + 2):
        assert alike([answer["results"][step] for answer in answers]), step
        mine, theirs = answers[0]["results"][step], results[0][step]
        if step == STEPS:
            assert mine.isnan().any() if whole else mine.isnan().all()
        elif exact:
            assert bits_equal(mine, theirs), step
        elif case.method not in VOTES:
            torch.testing.assert_close(mine, theirs, rtol=1e-2, atol=1e-2)
    for answer, handle in zip(answers, handles):
        assert answer["unchanged"]
        if not whole:
            assert answer["skipped"] == 1
            assert answer["state"]["steps"] == {NAME: STEPS + 1}
        owed = handle.session.residual(NAME)
        assert (answer["owed"] is None) == (owed is None)
        if owed is not None and exact:
            assert bits_equal(answer["owed"], owed)
        if case.method not in ("none", "threshold") and case.communicator != "alltoall":
            assert answer["payload"] < answer["dense"]


@pytest.mark.parametrize("what", ["keras SGD", "keras Adam", "tf_keras SGD", "tf_keras Adam", "legacy"])
def test_replicas_are_identical_after_fit(ranks, what):
    answers = [answer[what] for answer in ranks["fit"]]
    assert alike([answer["weights"] for answer in answers])
    assert not torch.equal(answers[0]["weights"], answers[0]["start"])
    if what != "legacy":
        assert all(answer["losses"][-1] < answer["losses"][0] for answer in answers)
        for answer in answers:
            # Three epochs of eight batches; one call and one collective a step for all six gradients.
            assert answer["steps"] == answer["iterations"] == answer["collectives"] == 24
            assert answer["smaller"] and answer["class"] == what.split()[1]
            assert len(answer["state"]) == 6 and all("kernel" in n or "bias" in n for n in answer["state"])


def test_every_method_through_fit(ranks):
    answers = ranks["all_methods"]
    assert set(answers[0]) == set(catalog.builtin_names())
    for method, answer in answers[0].items():
        assert answer["weights"].isfinite().all(), method
        assert alike([a[method]["weights"] for a in answers]), method
        assert np.mean([a[method]["losses"][-1] - a[method]["losses"][0] for a in answers]) < 0, method


@pytest.mark.parametrize("keras", ["keras", "tf_keras"])
@pytest.mark.parametrize("option", ["average", "sum", "passes", "mean of passes"])
def test_options_do_what_they_say(ranks, keras, option):
    answers = [answer[f"{keras} {option}"] for answer in ranks["options"]]
    for place in range(3):
        assert alike([answer[place] for answer in answers])
    plain, limit, lossy = answers[0]
    torch.testing.assert_close(plain, limit, rtol=1e-4, atol=1e-5)
    assert not torch.equal(lossy, plain)


def test_tape(ranks):
    mean = (ranks.size + 1) / 2
    for rank, answer in enumerate(ranks["tape"]):
        a, b, unused = answer["structure"]
        assert np.allclose(a, mean) and np.allclose(b, 40 * mean) and unused is None
        assert np.allclose(answer["single"], mean) and np.allclose(answer["with"], 2 * mean)
        assert answer["keys"] == ["kernel", "kernel.1"]
        kernel, bias = answer["keras variables"]
        assert np.allclose(kernel, 2 * mean) and np.allclose(bias, 2 * mean)
        table = np.zeros((10, 4))
        for r in range(ranks.size):
            table[r] += (r + 1) / ranks.size
            table[9] += (r + 1) / ranks.size
        for as_dense in (False, True):
            is_slices, value = answer[f"slices {as_dense}"]
            assert is_slices is not as_dense and np.allclose(value, table)
        shared, local = answer["local"]
        assert np.allclose(shared, mean) and np.allclose(local, (rank + 1) / ranks.size)
        for dtype in ("float64", "float16", "bfloat16"):
            kept, value = answer[dtype]
            assert kept and np.allclose(value, mean)


@pytest.mark.parametrize(
    "what, word",
    [
        ("adasum", "Adasum"), ("compression", "two compressions"), ("predivide", "Leave it out"), ("groups", "Leave"),
        ("device", "device_dense"), ("passes", "of at least 1"), ("tape", "Adasum"), ("no method", "grace.topk(0.01)"),
        ("late option", "sparse_as_dense"), ("stateless tape", "grace_dl.tensorflow.handle"),
        ("version 1", "DistributedGradientTape"), ("jit keras", "XLA"), ("jit tf_keras", "XLA"),
        ("mixed", "LossScaleOptimizer"),
    ],
)  # fmt: skip
def test_what_cannot_be_combined_is_refused_in_words(ranks, what, word):
    assert all(word in answer[what] for answer in ranks["refused"])


def test_xla_is_turned_off_with_a_notice(ranks):
    for answer in ranks["xla"]:
        assert answer["jit"] is False and len(answer["notices"]) == 1


def test_loss_scaling_inside_the_exchange(ranks):
    assert alike([answer["weights"] for answer in ranks["loss_scale"]])
    for answer in ranks["loss_scale"]:
        assert answer["scale"] < 2.0**24 and answer["told"] is not None
        assert answer["weights"].isfinite().all()


def test_saved_models_load_without_us(ranks):
    for answer in ranks["saving"]:
        assert answer["class"] and answer["weights"]
        assert answer["iterations"][0] == answer["iterations"][1] > 0
        assert any(answer["owed"].values())


def test_disabling_leaves_horovod_and_keras_as_they_were(ranks):
    mean = (ranks.size + 1) / 2
    for answer in ranks["disable"]:
        assert answer["taught"] and answer["restored"] and answer["compile"] and answer["enabled"]
        assert answer["unknown"] == 3
        assert answer["plain"] == [[mean, mean], [mean, mean]]
