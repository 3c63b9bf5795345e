"""Time a training step of each method and its parts, beside DDP alone and a step without communication."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ...options import add_methods, names

if TYPE_CHECKING:
    from ....bench.step_benchmark import StepPlan
    from ....bench.workload import Workload

SUMMARY = "a training step and its parts, beside plain DDP"
MODELS = (
    "resnet18, resnet50, resnet152, vgg16, inception-v4, densenet201, bert-base, bert-large, transformer, cnn, "
    "resnet50-shapes, small-shapes"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model", default="resnet50-shapes", help=f"{MODELS}; several by commas (default resnet50-shapes)"
    )
    parser.add_argument("--workers", type=int, default=2, help="workers in all (default 2)")
    parser.add_argument(
        "--hosts", default="", help="hosts to spread them over, reached by ssh (default: this one)"
    )
    add_plan_arguments(parser)


def run(arguments: argparse.Namespace) -> None:
    from ....bench.step_benchmark import measure_steps

    measure_steps(
        workloads_of(arguments),
        plan_of(arguments),
        arguments.out,
        workers=arguments.workers,
        hosts=arguments.hosts,
        fresh=arguments.fresh,
    )


def add_plan_arguments(parser: argparse.ArgumentParser) -> None:
    """Options shared by `step` and `link`."""
    add_methods(
        parser,
        "methods beside the baselines ddp and ddp-fp16, such as topk:0.01 powersgd:rank=4, or all; exactly these if "
        "one of the baselines is among them (ssgd is another name of ddp)",
    )
    parser.add_argument(
        "--through",
        default="ddp",
        metavar="TARGET",
        help="what methods are attached to: ddp (default), optimizer, or both by commas",
    )
    parser.add_argument(
        "--batch-size", type=int, help="samples per worker and step (default: the model's own)"
    )
    parser.add_argument("--image-size", type=int, help="pixels per side (default 224; inception-v4: 299)")
    parser.add_argument("--length", type=int, help="words of a sentence (default 64)")
    parser.add_argument("--threads", type=int, default=1, help="threads of a worker (default 1)")
    parser.add_argument("--rounds", type=int, default=15, help="steps measured, at most (default 15)")


def plan_of(arguments: argparse.Namespace) -> StepPlan:
    """What is measured, and how."""
    from ....bench.step_benchmark import StepPlan, candidates

    chosen = candidates(arguments.methods, names(arguments.through))
    return StepPlan(chosen, arguments.rounds, arguments.threads)


def workloads_of(arguments: argparse.Namespace) -> list[Workload]:
    """The models with the given sizes."""
    from ....bench.workload import Workload, workloads

    if arguments.quick:
        return [Workload("small-shapes")]
    return workloads(arguments.model, arguments.batch_size, arguments.image_size, arguments.length)
