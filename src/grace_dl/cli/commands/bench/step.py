"""Time a training step of each method and its parts, beside DDP alone and a step without communication."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ...options import (
    add_batch_size,
    add_methods,
    add_models,
    add_threads,
    add_workers,
    note_defaults,
)
from ...parser import Listed, whole

if TYPE_CHECKING:
    from ....bench.step_benchmark import StepPlan
    from ....bench.workload import Workload

SUMMARY = "a training step and its parts, beside plain DDP"
EXAMPLES = (
    "grace bench step --quick",
    "grace bench step --model resnet50-shapes --methods topk:0.01 powersgd:rank=4",
    "grace bench step --model resnet18,bert-base --batch-size 4 --image-size 96",
)
MODEL = "resnet50-shapes"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_models(parser, MODEL)
    add_workers(parser, several=True)
    parser.add_argument(
        "--hosts",
        nargs="+",
        default=[],
        metavar="HOST",
        help="hosts to spread them over, reached by ssh (default: this one)",
    )
    add_plan_arguments(parser)


def uses_links(arguments: argparse.Namespace) -> bool:
    return False


def run(arguments: argparse.Namespace) -> None:
    from ....bench.step_benchmark import measure_steps
    from ....errors import ConfigError

    if not all(host.strip() for host in arguments.hosts):
        raise ConfigError(
            "--hosts '' is not the name of a host; name one, or leave --hosts out for this one."
        )
    measure_steps(
        workloads_of(arguments, MODEL),
        plan_of(arguments),
        arguments.out,
        workers=arguments.workers,
        hosts=" ".join(arguments.hosts),
        fresh=arguments.fresh,
    )


def add_plan_arguments(parser: argparse.ArgumentParser) -> None:
    """Options shared by `step` and `link`."""
    add_methods(
        parser,
        "methods beside the baselines ddp and ddp-fp16, such as topk:0.01 powersgd:rank=4, or all, and local steps, such as diloco "
        "or 'local(int4; every=30)'; exactly these if one of the baselines is among them (ssgd is another name of ddp)",
    )
    parser.add_argument(
        "--through",
        action=Listed,
        default=["ddp"],
        metavar="TARGET",
        help="what methods are attached to: ddp (default), optimizer, fsdp (FSDP2), hsdp (FSDP2 over pairs of workers, with replicas), or several",
    )
    add_batch_size(parser, "the model's own")
    parser.add_argument(
        "--image-size", type=whole(), metavar="N", help="pixels per side (default 224; inception-v4: 299)"
    )
    parser.add_argument("--length", type=whole(), metavar="N", help="words of a sentence (default 64)")
    parser.add_argument(
        "--accumulate",
        type=whole(),
        default=1,
        metavar="N",
        help="forward and backward passes per step; DDP exchanges their sum, FSDP2 reduces the gradients of every pass and gathers parameters once (default 1)",
    )
    add_threads(parser, several=False)
    parser.add_argument(
        "--rounds", type=whole(3), default=15, metavar="N", help="steps measured, at most (default 15)"
    )


def plan_of(arguments: argparse.Namespace) -> StepPlan:
    """What is measured, and how."""
    from ....bench.step_benchmark import StepPlan, candidates

    chosen = candidates(arguments.methods, arguments.through)
    note_defaults(arguments.methods)
    return StepPlan(chosen, arguments.rounds, arguments.threads)


def workloads_of(arguments: argparse.Namespace, default: str) -> list[Workload]:
    """The models with the given sizes."""
    from ....bench.workload import workloads

    models = arguments.model or ["small-shapes" if arguments.quick else default]
    sizes = arguments.batch_size, arguments.image_size, arguments.length
    return workloads(models, *sizes, arguments.accumulate)
