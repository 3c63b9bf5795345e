"""The cost model: clusters, collectives, timelines, codec costs and predictions."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
import torch

import grace_dl as grace
from grace_dl.algebra.base import Method, Single
from grace_dl.algebra.local_rule import LocalRule
from grace_dl.bench.models import resnet50_shapes
from grace_dl.errors import ConfigError
from grace_dl.pipeline.outline import Load, blank
from grace_dl.pipeline.request import Gather, Sum, Swap
from grace_dl.plan.cluster import Cluster, Link
from grace_dl.plan.codec_timing import codec_costs, measure
from grace_dl.plan.codecs import CodecCost, Line, fit
from grace_dl.plan.network import collective_load, collective_seconds
from grace_dl.plan.predict import Planned, Planner, parts_of
from grace_dl.plan.probe import probe
from grace_dl.plan.profile import Parameter, Profile
from grace_dl.plan.sweep import sweep, verdict
from grace_dl.plan.timeline import BucketCost, Round, simulate

TEXTS = (
    "fp16",
    "int8",
    "int4:communicator=alltoall",
    "topk:0.01",
    "threshold:0.1",
    "powersgd:4",
    "acpsgd:4",
    "signsgd",
)
METHODS: list[Method] = [grace.parse(text) for text in TEXTS]


def resnet50(backward: float = 0.12) -> Profile:
    shapes = resnet50_shapes()[::-1]
    total, done, made = sum(map(math.prod, shapes)), 0, []
    for place, shape in enumerate(shapes):
        done += math.prod(shape)
        made.append(Parameter(f"p{place}", shape, torch.float32, backward * done / total))
    return Profile("resnet50", tuple(made), backward / 2, backward, 0.01)


def costs_of(methods: Iterable[Planned], per_element: float = 1e-9) -> dict[Single, CodecCost]:
    """The same costs for every method: predictions then differ by bytes alone."""
    cost = CodecCost(Line(1e-5, 1e-6, per_element), Line(1e-5, 1e-6, 0.0, 0.0, per_element / 2), bits=1.0)
    return dict.fromkeys(parts_of(methods), cost)


# Clusters ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text, nodes, ranks, bits",
    [
        ("64x8@25gbit", 64, 8, 25e9),
        ("4@1gbit", 4, 1, 1e9),
        ("2 × 4 @ 100mbit", 2, 4, 1e8),
        ("3x2@unlimited", 3, 2, math.inf),
    ],
)
def test_clusters_are_read(text: str, nodes: int, ranks: int, bits: float) -> None:
    cluster = Cluster.parse(text)
    assert (cluster.nodes, cluster.ranks_per_node, cluster.outer.bits) == (nodes, ranks, bits)


@pytest.mark.parametrize(
    "text",
    ["", "64x8", "x8@1gbit", "0x8@1gbit", "8x0@1gbit", "4@fast", "4@0gbit", "-4@1gbit", "10000000x8@1gbit"],
)
def test_impossible_clusters_are_rejected(text: str) -> None:
    with pytest.raises(ConfigError) as error:
        Cluster.parse(text)
    assert "\n" not in str(error.value)


def test_a_cluster_is_resized_by_nodes() -> None:
    cluster = Cluster.parse("64x8@25gbit")
    assert [cluster.resized(w).workers for w in (2, 8, 16, 10_000)] == [2, 8, 16, 10_000]
    assert cluster.resized(2).nodes == 1


# Collectives ------------------------------------------------------------------------------------------------


def test_collectives_take_alpha_and_beta() -> None:
    cluster = Cluster(4, 1, Link(8e9, 1e-3, goodput=1.0))
    mega = 1_000_000
    assert collective_seconds(Sum(blank(mega)), cluster) == pytest.approx(6e-3 + 1.5e-3)
    assert collective_seconds(Gather(blank(4 * mega), blank(mega)), cluster) == pytest.approx(3e-3 + 3e-3)
    swap = Swap(blank(mega), blank(mega), [mega // 4] * 4, [mega // 4] * 4, 0)
    assert collective_seconds(swap, cluster) == pytest.approx(3e-3 + 0.75e-3)
    assert collective_seconds(Sum(blank(mega)), cluster.resized(1)) == 0


def test_ranks_of_a_node_share_its_link_in_direct_messages_only() -> None:
    flat, deep = Cluster(8, 1, Link(1e9, 0.0)), Cluster(2, 4, Link(1e9, 0.0), Link(1e12, 0.0))
    mega, parts = 8_000_000, [1_000_000] * 8
    ring = Sum(blank(mega))
    assert collective_seconds(ring, deep) == pytest.approx(collective_seconds(ring, flat))
    swap = Swap(blank(mega), blank(mega), parts, parts, 0)
    # Each of the four ranks sends four of its seven messages to the other node.
    assert collective_seconds(swap, deep) == pytest.approx(4 * 4 / 7 * collective_seconds(swap, flat))


def probe_ranks(rank: int, world: int) -> tuple[float, float]:
    link = probe(large=65536)
    return link.bits, link.latency


def test_a_probe_gives_all_ranks_the_same_link(launch) -> None:  # type: ignore[no-untyped-def]
    first, second, third = launch(probe_ranks, 3)
    assert first == second == third
    assert first[0] > 0 and 0 < first[1] < 10


# Timeline ---------------------------------------------------------------------------------------------------


def test_sending_hides_behind_backward_and_encoding_does_not() -> None:
    hidden = simulate(1.0, [BucketCost(0.2, [Round(0.0, 0.5)]), BucketCost(1.0, [])])
    assert hidden.seconds == pytest.approx(1.0) and hidden.waiting == 0
    encoded = simulate(1.0, [BucketCost(0.2, [Round(0.3, 0.5)]), BucketCost(1.0, [])])
    assert encoded.seconds == pytest.approx(1.3)


def test_collectives_queue_on_the_link() -> None:
    step = simulate(1.0, [BucketCost(0.5, [Round(0, 1.0)]), BucketCost(1.0, [Round(0, 1.0)])])
    assert step.seconds == pytest.approx(2.5)
    assert step.wire == pytest.approx(2.0)


def test_a_second_round_leaves_when_a_later_bucket_finds_the_first_complete() -> None:
    two = [Round(0, 0.1), Round(0.05, 0.1)]
    step = simulate(1.0, [BucketCost(0.2, two), BucketCost(0.6, two), BucketCost(1.0, two)])
    second = [span for span in step.spans if span.what == "encode" and span.bucket == 0]
    assert second[0].start == pytest.approx(0.6)
    # The last bucket's rounds remain after backward (delayed by two encodings).
    assert step.seconds == pytest.approx(1.1 + 0.1 + 0.05 + 0.1)


def test_on_a_device_later_rounds_wait_for_backward() -> None:
    two = [Round(0, 0.1), Round(0.05, 0.1)]
    step = simulate(1.0, [BucketCost(0.2, two), BucketCost(1.0, two)], one_order=True)
    assert [span.start >= 1.0 for span in step.spans if span.what == "encode"] == [True, True]


def test_a_step_without_buckets_is_backward() -> None:
    assert simulate(0.5, []).seconds == 0.5


# Codecs -----------------------------------------------------------------------------------------------------


def test_lines_recover_the_cost_of_payloads() -> None:
    true = Line(1e-5, 2e-6, 1e-10, 1e-6, 3e-10)
    loads = [Load(t, n, p) for t, n in ((1, 4096), (24, 98_304), (2, 2_000_000)) for p in (1, 4)]
    found = fit(loads, [true.seconds(load) for load in loads])
    for load in [*loads, Load(160, 25_000_000, 64)]:
        assert found.seconds(load) == pytest.approx(true.seconds(load), rel=1e-3)


def test_negative_coefficients_are_never_fitted() -> None:
    found = fit([Load(1, 1000), Load(1, 2000), Load(8, 4000)], [3e-5, 2e-5, 1e-5])
    assert all(value >= 0 for value in found)


@pytest.mark.parametrize("text", ["int4", "powersgd:2", "threshold:0.5"])
def test_codecs_are_measured_through_the_exchange(text: str) -> None:
    (part,) = parts_of([grace.parse(text)])
    cost = measure(part)
    assert cost.encode.seconds(Load(1, 1_000_000)) > 0 and cost.decode.seconds(Load(1, 1_000_000)) > 0
    assert CodecCost.from_dict(cost.to_dict()) == cost
    assert 0 < cost.bits < 40


def test_costs_are_cached(tmp_path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setenv("GRACE_CACHE", str(tmp_path / "cache"))
    parts = parts_of([grace.parse("fp16"), grace.parse("fp16:seed=3")])
    measured: list[str] = []
    first = codec_costs(parts, on_measure=measured.append)
    assert measured == ["fp16"]  # a seed changes no cost
    again = codec_costs(parts, on_measure=measured.append)
    assert again == first and len(measured) == 1
    (tmp_path / "cache" / "codecs.json").write_text("{ damaged")
    codec_costs(parts, on_measure=measured.append)
    assert len(measured) == 2
    codec_costs(parts, fresh=True, on_measure=measured.append)
    assert len(measured) == 3


# Predictions ------------------------------------------------------------------------------------------------


def test_plain_ddp_is_a_ring_all_reduce() -> None:
    profile = resnet50()
    cluster = Cluster.parse("4@1gbit")
    step = Planner(profile, {}).predict(None, cluster)
    assert step.leaving_bytes == pytest.approx(2 * profile.nbytes * 3 / 4, abs=20)
    wire = step.leaving_bytes * cluster.outer.seconds_per_byte
    assert profile.compute < step.seconds < profile.compute + wire + 0.01
    assert step.timeline.wire == pytest.approx(wire, rel=0.01)


def test_one_worker_waits_for_nobody() -> None:
    step = Planner(resnet50(), {}).predict(None, Cluster.parse("1@1gbit"))
    assert step.seconds == pytest.approx(step.compute) and step.efficiency == pytest.approx(1.0)


def test_slower_links_make_smaller_payloads_win() -> None:
    planner = Planner(resnet50(), costs_of(METHODS))
    slow, fast = Cluster.parse("2@100mbit"), Cluster.parse("2@400gbit")
    for method in METHODS:
        assert planner.predict(method, slow).seconds < planner.predict(None, slow).seconds, str(method)
        assert planner.predict(method, fast).seconds > planner.predict(None, fast).seconds, str(method)
        bits = planner.break_even(method, slow)
        assert 1e8 < bits < 4e11
        there = slow.at_rate(bits)
        assert planner.predict(method, there).seconds == pytest.approx(
            planner.predict(None, there).seconds, rel=1e-3
        )


def test_an_all_gather_outgrows_an_all_reduce() -> None:
    (method,) = methods = [grace.parse("signsgd:communicator=allgather")]
    planner = Planner(resnet50(), costs_of(methods))
    few, many = Cluster.parse("4@1gbit"), Cluster.parse("512@1gbit")
    assert planner.predict(method, few).leaving_bytes < planner.predict(None, few).leaving_bytes
    assert planner.predict(method, many).leaving_bytes > planner.predict(None, many).leaving_bytes


def test_compositions_are_planned_by_parameter() -> None:
    mixed = grace.by_parameter({"p0": grace.none()}, default=grace.int8())
    later = grace.schedule((0, grace.none()), (500, mixed))
    planner = Planner(resnet50(), costs_of([mixed, later]))
    cluster = Cluster.parse("2@1gbit")
    step, plain = planner.predict(mixed, cluster), planner.predict(None, cluster)
    assert plain.leaving_bytes / 4.1 < step.leaving_bytes < plain.leaving_bytes / 2
    assert planner.predict(later, cluster).seconds == step.seconds  # a schedule is planned at its end


def test_two_levels_use_the_slow_link_once_per_node() -> None:
    flat = grace.topk(0.01, communicator="allgather")
    levels = grace.hierarchical(outer=flat)
    planner = Planner(resnet50(), costs_of([flat, levels], 1e-12))
    nodes = Cluster.parse("16x8@1gbit")
    alone = Cluster.parse("16@1gbit")
    # Between nodes as long as one rank a node would take, and within them a little.
    found, reference = planner.predict(levels, nodes), planner.predict(flat, alone)
    assert reference.seconds < found.seconds < 1.3 * reference.seconds
    assert found.seconds < planner.predict(flat, nodes).seconds / 2
    assert planner.predict(levels, alone).leaving_bytes == reference.leaving_bytes


def test_local_steps_spread_an_exchange_over_their_period() -> None:
    method, cluster = grace.parse("int8"), Cluster.parse("4@100mbit")
    rules = {every: LocalRule(method, every) for every in (1, 10, 100)}
    planner = Planner(resnet50(), costs_of(rules.values()))
    steps = {every: planner.predict(rule, cluster) for every, rule in rules.items()}
    compute, at_once = planner.profile.compute, planner.predict(method, cluster)
    for every, step in steps.items():
        assert step.every == every and step.exchange_bytes == pytest.approx(at_once.leaving_bytes)
        assert step.seconds - compute == pytest.approx(step.timeline.seconds / every)
    # Nothing hides behind backward, so an exchange at every step would be slower than a method at every step.
    assert steps[1].seconds > at_once.seconds > steps[10].seconds > steps[100].seconds
    assert planner.break_even(rules[100], cluster) > planner.break_even(method, cluster)
    late = planner.predict(LocalRule(method, 100, delay=50), cluster)
    assert late.waiting < steps[100].waiting and late.codec == steps[100].codec
    hidden = planner.predict(LocalRule(method, 100, delay=100), Cluster.parse("4@10gbit"))
    assert hidden.waiting == 0 and hidden.seconds < 1.05 * compute


def test_ten_thousand_workers_are_planned() -> None:
    planner = Planner(resnet50(), costs_of(METHODS))
    cluster = Cluster.parse("1250x8@25gbit")
    for method in METHODS:
        assert planner.predict(method, cluster).seconds > planner.profile.compute


def test_a_sweep_covers_workers_and_rates_and_ends_with_a_verdict() -> None:
    methods = [grace.parse("int8"), grace.parse("topk:0.01")]
    planner = Planner(resnet50(), costs_of(methods, 1e-10))
    cluster = Cluster.parse("8@1gbit")
    found = sweep(planner, methods, cluster, workers=(2, 64), rates=(1e8, 1e12))
    assert set(found.best) == {(w, r) for w in (2, 64) for r in (1e8, 1e12)}
    assert found.best[2, 1e12].prediction.method == "ddp"
    assert verdict(found).startswith(f"Use {found.ranked[0].prediction.method}")
    nothing = sweep(planner, methods, replace(cluster, outer=Link(1e15, 0.0)), workers=(2,), rates=(1e9,))
    assert verdict(nothing).startswith("Use plain DDP")


def test_a_collective_that_needs_the_cores_of_the_backward_pass_hides_nothing() -> None:
    buckets = [BucketCost(0.2, [Round(0.1, 0.5, load=1.0)]), BucketCost(1.0, [], decode=0.2)]
    step = simulate(1.0, buckets)
    assert step.seconds == pytest.approx(1.0 + 0.1 + 0.5 + 0.2)
    assert step.waiting == pytest.approx(0.5)
    backward = [span for span in step.spans if span.what == "backward"]
    assert [(span.start, span.end) for span in backward] == [
        (0.0, 0.2),
        (pytest.approx(0.3), pytest.approx(1.6)),
    ]


def test_a_collective_with_a_load_takes_its_share_of_the_work_beside_it() -> None:
    quarter = [Round(0.0, 0.4, load=0.25)]
    assert simulate(1.0, [BucketCost(0.2, quarter)]).seconds == pytest.approx(1.1)
    # Waiting costs nothing more, and two collectives take their shares one after the other.
    assert simulate(0.2, [BucketCost(0.2, quarter)]).seconds == pytest.approx(0.6)
    assert simulate(2.0, [BucketCost(0.0, quarter), BucketCost(0.1, quarter)]).seconds == pytest.approx(2.2)


def test_links_slower_than_their_processing_leave_most_of_the_backward_pass_alone() -> None:
    fast = Link(8e9, 0.0, goodput=1.0)
    processing = fast.seconds_per_byte
    for bits, load in ((8e9, 1.0), (8e8, 0.1)):
        cluster = Cluster(2, 1, replace(fast, bits=bits, processing=processing))
        request = Sum(blank(1_000_000))
        seconds = collective_seconds(request, cluster)
        assert collective_load(request, cluster, seconds) == pytest.approx(load)


def test_large_models_are_planned_quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Buckets of the same layout are laid out once, and a timeline takes time in proportion to its buckets."""
    laid_out: list[int] = []
    real = Planner._routes

    def routes(planner: Planner, method: Method, built: Any, place: int) -> Any:
        laid_out.append(place)
        return real(planner, method, built, place)

    monkeypatch.setattr(Planner, "_routes", routes)
    method = grace.int8()
    costs = dict.fromkeys(method.parts(), CodecCost(Line(element=1e-9), Line(element=1e-9)))
    planner = Planner(Profile.from_figures(parameters=7e9, backward=1.0), costs)
    step = planner.predict(method, Cluster.parse("1250x8@25gbit"))
    assert len(laid_out) <= 3
    assert step.leaving_bytes == pytest.approx(2 * 7e9, rel=0.1)
    start = time.process_time()
    simulate(1.0, [BucketCost(i / 3000, [Round(1e-4, 1e-3)], 1e-4) for i in range(3000)])
    assert time.process_time() - start < 0.5
