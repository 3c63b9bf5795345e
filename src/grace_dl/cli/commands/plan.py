"""Predict step time, speed-up and traffic of each method on a cluster of any size, from a profile of the model and codec costs
measured on this machine: will compression pay, with which method, and below which link rate?"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from ...output_files import check_writable
from ..options import (
    MODELS,
    add_batch_size,
    add_methods,
    add_out,
    add_threads,
    note_defaults,
    output_file,
)
from ..parser import Listed, Parser, path, positive, whole

if TYPE_CHECKING:
    from ...plan.cluster import Cluster
    from ...plan.profile import Profile

T = TypeVar("T")

SUMMARY = "predict what compression gains on a cluster"
EXAMPLES = (
    "grace plan --model transformer --cluster 16x1@1gbit",
    "grace plan --profile grace-profile.json --cluster 64x8@25gbit --methods int8 topk:0.01",
    "grace plan --parameters 7B --backward 900ms --cluster 128x8@100gbit --engine nccl --codec-speed 50",
    "grace plan --model transformer --cluster 4x1@100mbit --methods diloco 'local(int4; every=100)'",
    "grace plan --methods int8,topk:0.01 -- torchrun --nproc-per-node 2 my_train.py",
    "grace plan --check runs/bench/link.json",
)
USUAL = Path("runs/plan.json")
CLUSTER = "8x1@10gbit"
METHODS = (
    *("fp16", "int8", "int4", "efsignsgd", "eden"),
    *("topk:0.01", "topk:0.001", "dgc:0.001", "acpsgd:4", "powersgd:4"),
)
"""The default methods: about one of each family, without those known to cost accuracy."""
NODE_METHODS = ("hierarchical(inner=none; outer=int4)", "hierarchical(inner=none; outer=topk:0.01)")
"""The default methods of two levels, for nodes of several ranks."""
SCRIPT_METHODS = ("fp16", "int8", "int4", "topk:0.01", "powersgd:4")
"""The default methods in a script, where each takes time."""

SOURCES = ("profile", "model", "parameters")
TIMES = ("forward", "backward", "update")
SIZES = ("batch_size", "image_size", "length")
LINKS = ("cluster", "latency", "inner_rate", "inner_latency", "engine")
PLANS = (*SOURCES, *TIMES, *SIZES, *LINKS, "methods", "threads", "codec_speed", "report")
"""Options of a plan, which checks of the cost model do not have."""


def add_arguments(parser: Parser) -> None:
    source = parser.add_argument_group("model, one of")
    source.add_argument(
        "--profile", type=path, metavar="FILE", help="a file that grace.profile(model) has written"
    )
    source.add_argument(
        "--model",
        action=Listed,
        single=True,
        metavar="NAME",
        help=f"a model to measure here: {', '.join(MODELS)}, or a function of yours as my_module:build",
    )
    source.add_argument(
        "--parameters", metavar="N", help="number of parameters, such as 25.6M or 7B; needs --backward"
    )
    times = parser.add_argument_group("times of one worker, with --parameters or to replace measured ones")
    times.add_argument("--forward", metavar="TIME", help="such as 60ms (default: half of --backward)")
    times.add_argument("--backward", metavar="TIME", help="such as 120ms")
    times.add_argument("--update", metavar="TIME", help="the optimizer's step (default 0 with --parameters)")
    sizes = parser.add_argument_group("sizes of --model")
    add_batch_size(sizes, "the model's own")
    sizes.add_argument("--image-size", type=whole(), metavar="N", help="pixels per side")
    sizes.add_argument("--length", type=whole(), metavar="N", help="words of a sentence")
    network = parser.add_argument_group("cluster")
    network.add_argument(
        "--cluster",
        help="nodes x ranks per node @ link rate of a node, such as 64x8@25gbit (default 8x1@10gbit; for a script, its own)",
    )
    for option in ("--rate", "--workers", "--per-host"):
        parser.suggest_instead(option, f"--cluster {CLUSTER}: nodes x ranks per node @ link rate")
    network.add_argument("--latency", metavar="TIME", help="of a message between nodes (default 30us)")
    network.add_argument("--inner-rate", metavar="RATE", help="link rate within a node (default 100gbit)")
    network.add_argument("--inner-latency", metavar="TIME", help="of a message within a node (default 5us)")
    network.add_argument(
        "--engine",
        help="gloo or nccl: their collective algorithms (default gloo; nccl if the profile is of a GPU)",
    )
    add_methods(
        parser,
        f"methods beside plain DDP, and local steps, such as diloco or 'local(int4; every=30)' (default {' '.join(METHODS)}; for "
        "nodes of several ranks also hierarchical)",
    )
    add_threads(parser, several=False)
    parser.add_argument(
        "--codec-speed",
        type=positive,
        default=1.0,
        metavar="FACTOR",
        help="how many times faster than this machine the workers encode and decode (default 1)",
    )
    add_out(parser, USUAL)
    parser.add_argument("--report", type=path, help="HTML page (default: beside the result file)")
    parser.add_argument(
        "--fresh", action="store_true", help="measure codecs again instead of using cached costs"
    )
    script = parser.add_argument_group("a training script")
    script.add_argument(
        "script",
        nargs="*",
        metavar="-- COMMAND",
        help="measure an unchanged script that uses DistributedDataParallel, with each method in turn; the run ends after "
        "that, and its weights are of no use",
    )
    script.add_argument(
        "--steps",
        type=whole(8),
        default=12,
        metavar="N",
        help="steps of each method in a script (default 12)",
    )
    checks = parser.add_argument_group("checks of the cost model, instead of a plan")
    checks.add_argument(
        "--check",
        nargs="+",
        type=path,
        metavar="FILE.json",
        help="results of `grace bench link`: predicted divided by measured step times",
    )
    checks.add_argument(
        "--validate",
        type=path,
        metavar="FILE.csv",
        help="GRACE's released measurements: fit 1, 2 and 4 workers, predict 8; see docs/planning.md",
    )


def run(arguments: argparse.Namespace) -> int:
    if arguments.script:
        return _script(arguments)
    if arguments.validate is None and arguments.check is None:
        refuse(arguments, ("steps",), "without a command after --")
        return _plan(arguments, cluster_of(arguments))
    from ...errors import ConfigError
    from ..plan_checks import check, validate

    if arguments.validate is not None and arguments.check is not None:
        raise ConfigError("--check and --validate are two commands; run one after the other.")
    if arguments.validate is not None:
        refuse(arguments, (*PLANS, "fresh", "steps"), "with --validate")
        validate(arguments.validate, output_file(arguments.out, USUAL.with_name("plan-validation.json")))
    else:
        refuse(arguments, (*PLANS, "steps"), "with --check")
        out = output_file(arguments.out, USUAL.with_name("plan-check.json"))
        check(arguments.check, out, arguments.fresh)
    return 0


def _script(arguments: argparse.Namespace) -> int:
    from ...algebra.text import parse
    from ...console import output
    from ...errors import GraceError
    from ..plan_script import run_script, show_script, warning_of_times

    refuse(arguments, (*SOURCES, "check", "validate", *TIMES, *SIZES), "with a command after --")
    cluster_of(arguments)  # wrong options are told before the script runs
    out, page = _outputs(arguments)
    methods = [str(method) for method in _planned(arguments, SCRIPT_METHODS, parse)]
    console = output()
    note_defaults(arguments.methods)
    console.print(
        f"Measuring {len(methods)} methods beside plain DDP and a step without communication, {arguments.steps} steps each. "
        "Replicas drift apart: do not use checkpoints of this run.",
        soft_wrap=True,
    )
    found = run_script(arguments.script, methods, arguments.steps)
    show_script(console, found)
    if found.failure:
        raise GraceError(found.failure)
    if found.profile is None:
        console.print(
            "Training ended before its profile was complete, so nothing is predicted for other clusters."
        )
        return 0
    if arguments.cluster is None and found.cluster.outer.bits == math.inf:
        console.print(
            f"One worker has no link, so nothing is predicted; name a cluster, as in --cluster {CLUSTER}."
        )
        return 0
    if warning := warning_of_times(found):
        console.print(warning, style="yellow", soft_wrap=True)
    console.print("\nPredictions from the profile of this run:")
    return _predict(arguments, out, page, found.profile, cluster_of(arguments, found.cluster))


def _plan(arguments: argparse.Namespace, cluster: Cluster) -> int:
    from ...console import output

    out, page = _outputs(arguments)
    note_defaults(arguments.methods)
    with output().status("measuring the model"):
        profile = profile_of(arguments)
    return _predict(arguments, out, page, profile, cluster)


def refuse(arguments: argparse.Namespace, names: Sequence[str], where: str) -> None:
    """Raise an error that names the options which were given and have no effect."""
    from ...errors import ConfigError

    default = arguments.parser.get_default
    given = [f"--{name.replace('_', '-')}" for name in names if getattr(arguments, name) != default(name)]
    if given:
        listed = ", ".join(given)
        raise ConfigError(
            f"{listed} {'has' if len(given) == 1 else 'have'} no effect {where}; leave out {listed}."
        )


def _outputs(arguments: argparse.Namespace) -> tuple[Path, Path]:
    """The result file and the page, checked before any work."""
    from ...errors import ConfigError

    out = output_file(arguments.out, USUAL)
    page: Path = arguments.report or out.with_suffix(".html")
    check_writable(page, "--report")
    if page.resolve() == out.resolve():
        raise ConfigError(f"--report {page} is the result file, too; write {page.with_suffix('.html')}.")
    return out, page


def _planned(arguments: argparse.Namespace, default: Sequence[str], read: Callable[[str], T]) -> list[T]:
    """What to compare with plain DDP."""
    from ...algebra.auto import Auto
    from ...algebra.text import split_list
    from ...errors import ConfigError

    named = dict.fromkeys(read(text) for text in split_list(arguments.methods or default))
    if not named:
        raise ConfigError("the list of methods is empty; name some, as in --methods topk:0.01 powersgd:4.")
    found = [each for each in named if str(each) != "none"]
    for method in found:
        if isinstance(method, Auto):
            listed = " ".join(map(str, method.allow))
            raise ConfigError(
                f"{method} chooses while it trains, so there is no step of its own to plan; name what it chooses from: "
                f"--methods {listed}. `grace bench link --methods auto` measures it."
            )
    return found


def _predict(arguments: argparse.Namespace, out: Path, page: Path, profile: Profile, cluster: Cluster) -> int:
    """Predict, show and save."""
    import torch

    from ...algebra.text import parse_rule
    from ...console import output
    from ...plan.codec_timing import codec_costs
    from ...plan.predict import Planner, parts_of
    from ...plan.sweep import sweep
    from ...report.build import write
    from ..plan_output import save, show

    console = output()
    usual = (*METHODS, *(NODE_METHODS if cluster.ranks_per_node > 1 else ()))
    methods = _planned(arguments, usual, parse_rule)
    if arguments.engine is None and profile.device == "cuda":
        cluster = replace(cluster, engine="nccl")
    with console.status("measuring codecs") as status:
        before = torch.get_num_threads()
        torch.set_num_threads(arguments.threads)
        try:
            measured = codec_costs(
                parts_of(methods),
                fresh=arguments.fresh,
                on_measure=lambda label: status.update(f"measuring the codec of {label}"),
            )
        finally:
            torch.set_num_threads(before)
        costs = {part: cost.scaled(1 / arguments.codec_speed) for part, cost in measured.items()}
        status.update("predicting")
        found = sweep(Planner(profile, costs), methods, cluster)
    show(console, profile, found)
    save(out, profile, found, threads=arguments.threads, codec_speed=arguments.codec_speed)
    console.print(f"Results: {out.resolve()}", soft_wrap=True)
    console.print(f"Report: {write([out], page).resolve()}", soft_wrap=True)
    return 0


def cluster_of(arguments: argparse.Namespace, probed: Cluster | None = None) -> Cluster:
    """The cluster of the command line; without `--cluster` the one that was probed, or the usual one."""
    from ...errors import ConfigError
    from ...formatting import parse_rate
    from ...plan.cluster import Cluster, parse_seconds

    if arguments.cluster is not None or probed is None:
        cluster = Cluster.parse(CLUSTER if arguments.cluster is None else arguments.cluster)
    else:
        cluster = probed
    outer, inner = cluster.outer, cluster.inner
    if outer.bits == math.inf:
        raise ConfigError(
            f"--cluster {arguments.cluster}: a plan needs the rate of the link between nodes; write 400gbit for a fast one."
        )
    if arguments.latency is not None:
        outer = replace(outer, latency=parse_seconds("--latency", arguments.latency))
    if arguments.inner_rate is not None:
        inner = replace(inner, bits=parse_rate(arguments.inner_rate))
    if arguments.inner_latency is not None:
        inner = replace(inner, latency=parse_seconds("--inner-latency", arguments.inner_latency))
    engine = cluster.engine if arguments.engine is None else arguments.engine
    return replace(cluster, outer=outer, inner=inner, engine=engine)


def profile_of(arguments: argparse.Namespace) -> Profile:
    """The profile of the command line: read, measured or made from figures."""
    from ...errors import ConfigError
    from ...plan.cluster import parse_seconds
    from ...plan.profile import Profile

    given = [name for name in SOURCES if getattr(arguments, name) is not None]
    if len(given) != 1:
        named = " and ".join(f"--{name}" for name in given) or "nothing"
        raise ConfigError(
            "the model is given by one of --profile FILE, --model NAME, --parameters N --backward TIME, or "
            f"`-- COMMAND` that starts training; here is {named}."
        )
    for option in SIZES:
        value = getattr(arguments, option)
        if value is not None and arguments.model is None:
            raise ConfigError(
                f"--{option.replace('_', '-')} {value} means nothing without --model, as no model is measured; leave it out."
            )
    times = {
        label: parse_seconds(f"--{label}", text)
        for label in TIMES
        if (text := getattr(arguments, label)) is not None
    }
    if arguments.parameters is not None:
        if "backward" not in times:
            raise ConfigError("--parameters needs the time of a backward pass: add --backward 120ms, say.")
        return Profile.from_figures(parameters=count_of(arguments.parameters), **times)
    if arguments.profile is not None:
        found = Profile.load(arguments.profile)
    else:
        from ...bench.profiling import profile_workload
        from ...bench.workload import Workload

        sizes = arguments.batch_size, arguments.image_size, arguments.length
        found = profile_workload(Workload(arguments.model, *sizes), threads=arguments.threads)
    return found.with_times(**times) if times else found


def count_of(text: str) -> float:
    """A number of parameters.

    >>> count_of("25.6M"), count_of("7B"), count_of("1000")
    (25600000.0, 7000000000.0, 1000.0)
    """
    from ...errors import ConfigError

    scale = {"k": 1e3, "m": 1e6, "g": 1e9, "b": 1e9, "t": 1e12}.get(text[-1:].lower(), 1.0)
    try:
        return float(text if scale == 1 else text[:-1]) * scale
    except ValueError:
        raise ConfigError(f"--parameters {text!r} is no number of parameters; write 25.6M or 7B.") from None
