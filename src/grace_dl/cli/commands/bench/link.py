"""Time training steps between hosts joined by links of given rates, made on this machine from network namespaces
(needs root; the real network is not touched)."""

from __future__ import annotations

import argparse

from ...options import names, whole_numbers
from .step import MODELS, add_plan_arguments, plan_of, workloads_of

SUMMARY = "the same between hosts joined by links of given rates"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default="transformer", help=f"{MODELS} (default transformer)")
    parser.add_argument("--rate", default="100mbit,1gbit,10gbit,unlimited", help="link rates, by commas")
    parser.add_argument("--workers", default="2", help="numbers of hosts, by commas (default 2)")
    add_plan_arguments(parser)


def run(arguments: argparse.Namespace) -> None:
    from ....bench.step_benchmark import measure_links
    from ....errors import ConfigError

    workload, *others = workloads_of(arguments)
    if others:
        raise ConfigError(f"--model {arguments.model!r}: give one model; `grace bench step` takes several.")
    measure_links(
        workload,
        plan_of(arguments),
        arguments.out,
        workers=whole_numbers("--workers", arguments.workers),
        rates=names(arguments.rate),
        fresh=arguments.fresh,
    )
