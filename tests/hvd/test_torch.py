"""Horovod with PyTorch, on two and three real processes."""

from __future__ import annotations

import pytest
import torch

from contract.cases import CASES, VOTES, bits_equal, run
from contract.training import NETWORK
from grace_dl import catalog
from hvd.cluster import launch
from hvd.steps import NAME, STEPS, sequence

FUNCTIONS = [
    "collectives", "contract", "train_all", "options", "refused", "disable", "usage", "uneven", "attached", "scaler",
    "disagreement", "missing_rank",
]  # fmt: skip


@pytest.fixture(scope="module", params=[2, 3])
def ranks(request):
    return launch(request.param, "torch_cases", FUNCTIONS, timeout=900)


@pytest.fixture(scope="module")
def expected():
    """The same gradients in a simulated world, which adds in the order of ranks; made once a size and case."""
    made = {}

    def simulate(size, case):
        if (size, case) not in made:
            made[size, case] = run(size, case, [sequence(r, size) for r in range(size)], NAME)
        return made[size, case]

    return simulate


def alike(values):
    return all(bits_equal(values[0], other) for other in values[1:])


def test_collectives(ranks):
    for rank, found in enumerate(ranks["collectives"]):
        assert sum(value is True for value in found.values()) == 7
        assert (
            "disagree" in found["disagreement"] and f"rank {1 if rank == 0 else 0}" in found["disagreement"]
        )


@pytest.mark.parametrize("case", CASES, ids=str)
def test_contract(ranks, expected, case):
    """Identical replicas, the bits of the simulated world, nothing lost, wire bytes, a step that is not finite."""
    answers = [answer[str(case)] for answer in ranks["contract"]]
    results, handles = expected(ranks.size, case)
    for step in range(STEPS + 2):
        assert alike([answer["results"][step] for answer in answers]), step
        mine, theirs = answers[0]["results"][step], results[0][step]
        if step == STEPS:
            assert mine.isnan().all()
        elif exact(case, ranks.size):
            assert bits_equal(mine, theirs), step
        elif case.method not in VOTES:
            # Horovod adds three floats in an order of its own.
            torch.testing.assert_close(mine, theirs, rtol=1e-2, atol=1e-2)
    for answer, handle in zip(answers, handles):
        assert answer["skipped"] == 1
        assert answer["state"]["steps"] == {NAME: STEPS + 1}
        owed = handle.session.residual(NAME)
        assert (answer["owed"] is None) == (owed is None)
        if owed is not None and exact(case, ranks.size):
            assert bits_equal(answer["owed"], owed)
        assert answer["payload"] <= answer["wire"] <= 2 * answer["payload"] + 16 * (STEPS + 2)
        if case.method not in ("none", "threshold") and case.communicator != "alltoall":
            assert answer["wire"] < answer["dense"]


def exact(case, size):
    """Whether all engines add in one order: always but for sums of three and more on the way."""
    return size == 2 or case.communicator != "allreduce"


def test_replicas_stay_identical_and_learn(ranks):
    answers = ranks["train_all"]
    assert set(answers[0]) == set(catalog.builtin_names())
    for method, (parameters, _) in answers[0].items():
        assert parameters.isfinite().all()
        assert alike([answer[method][0] for answer in answers]), method
        losses = torch.tensor([answer[method][1] for answer in answers]).mean(0)
        assert losses[-1] < losses[0], (method, NETWORK)


@pytest.mark.parametrize("option", ["average", "sum", "passes", "early", "clip"])
def test_options_do_what_they_do_without_us(ranks, option):
    answers = [answer[option] for answer in ranks["options"]]
    for place in range(3):
        assert alike([answer[place] for answer in answers])
    plain, limit, lossy = answers[0]
    torch.testing.assert_close(plain, limit, rtol=1e-4, atol=1e-5)
    assert not torch.equal(lossy, plain)


@pytest.mark.parametrize(
    "what, word",
    [
        ("adasum", "Adasum"), ("min", "Average"), ("compression", "two compressions"), ("predivide", "leave it out"),
        ("groups", "leave"), ("passes", "of at least 1"), ("no method", "grace.topk(0.01)"),
        ("missing names", "named_parameters"),
    ],
)  # fmt: skip
def test_what_cannot_be_combined_is_refused_in_words(ranks, what, word):
    assert all(word in answer[what] for answer in ranks["refused"])


def test_disabling_leaves_horovod_as_it_was(ranks):
    for answer in ranks["disable"]:
        assert all(answer[key] is True for key in ("taught", "restored", "unknown", "enabled again"))
        # Horovod's own sums of three floats do not come out alike twice.
        torch.testing.assert_close(*answer["plain"], rtol=1e-4, atol=1e-5)
    assert alike([answer["kept works"] for answer in ranks["disable"]])


def test_broadcasts_schedulers_closures_and_state(ranks):
    answers = ranks["usage"]
    for what in ("start", "end"):
        assert alike([answer[what] for answer in answers])
    for answer in answers:
        assert answer["rates"] == [0.01, 0.005]
        assert answer["class"] == "Adam" and answer["isinstance"] and answer["stats"] > 0
        assert answer["owed"].abs().sum() > 0
        assert not torch.equal(answer["start"], answer["end"])


def test_unused_parameters_and_sparse_gradients(ranks):
    assert alike([answer["parameters"] for answer in ranks["uneven"]])
    for answer in ranks["uneven"]:
        refusal, kept_sparse = answer["sparse"]
        assert "sparse" in refusal and kept_sparse is True


def test_attach_is_the_equal_of_the_keyword(ranks):
    for answer in ranks["attached"]:
        assert bits_equal(answer["attached"], answer["keyword"])
        torch.testing.assert_close(answer["passes"], answer["expected"], rtol=1e-4, atol=1e-5)
        assert answer["steps"] == 6
    assert alike([answer["switched"] for answer in ranks["attached"]])
    assert alike([answer["plain"] for answer in ranks["attached"]])
    assert not alike([answer["local"] for answer in ranks["attached"]])


def test_an_overflow_on_one_rank_is_skipped_on_all(ranks):
    for answer in ranks["scaler"]:
        assert answer["scales"] == [1024.0, 512.0, 512.0] and answer["skipped"] == 1
    assert alike([answer["parameters"] for answer in ranks["scaler"]])


def test_ranks_that_disagree_are_told(ranks):
    assert all("ratio" in answer for answer in ranks["disagreement"])


def test_a_rank_that_does_not_come_is_waited_for_until_the_limit(ranks):
    assert ranks["missing_rank"][0] == ""
    assert all(answer.startswith("2.") and "GRACE_TIMEOUT" in answer for answer in ranks["missing_rank"][1:])
