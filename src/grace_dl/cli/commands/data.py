"""Fetch a data set into the cache, or list what can be had."""

from __future__ import annotations

import argparse

SUMMARY = "fetch real data sets for demos and benchmarks"
EXAMPLES = ("grace data", "grace data mnist cifar10")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", help="data sets to fetch; none: list them")


def run(arguments: argparse.Namespace) -> int:
    from ...data import DATASETS, cache_folder, fetch
    from ...data.fetch import is_complete
    from ...registry import unknown

    for name in arguments.names:
        if name not in DATASETS:
            raise unknown("data set", name, DATASETS)
    for name in arguments.names:
        print(fetch(DATASETS[name], report=print))
    if not arguments.names:
        for name, dataset in DATASETS.items():
            here = is_complete(cache_folder() / name, dataset.digests)
            print(f"{name:14} {dataset.title:22} {'cached' if here else 'not fetched yet'}")
        print(f"Cache: {cache_folder()}")
    return 0
