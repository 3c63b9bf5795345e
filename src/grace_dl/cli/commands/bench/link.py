"""Time training steps between hosts joined by links of given rates, made on this machine from network namespaces. Needs
Linux, but not root; the real network is not touched."""

from __future__ import annotations

import argparse

from ...options import add_models, add_per_host, add_rates, add_workers
from .step import add_plan_arguments, plan_of, workloads_of

SUMMARY = "the same between hosts joined by links of given rates"
EXAMPLES = (
    "grace bench link --quick --rate 100mbit",
    "grace bench link --rate 100mbit,1gbit --methods topk:0.01 int4 --workers 2,4",
    "grace bench link --rate 1gbit --methods int4 --through hsdp --workers 4 --per-host 2",
    "grace bench link --rate 1gbit --methods int4 'hierarchical(outer=int4)' --workers 4 --per-host 2",
)
MODEL = "transformer"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_models(parser, MODEL)
    add_rates(parser, "100mbit,1gbit,10gbit,unlimited")
    add_workers(parser, several=True)
    add_per_host(parser)
    add_plan_arguments(parser)


def uses_links(arguments: argparse.Namespace) -> bool:
    from ....bench.virtual_hosts import with_links

    return bool(with_links(arguments.rate))


def run(arguments: argparse.Namespace) -> None:
    from ....bench.step_benchmark import measure_links

    measure_links(
        workloads_of(arguments, MODEL),
        plan_of(arguments),
        arguments.out,
        workers=arguments.workers,
        rates=arguments.rate,
        per_host=arguments.per_host,
        fresh=arguments.fresh,
    )
