"""Options shared by several commands: each has one name, one form and one meaning everywhere."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from ..errors import ConfigError
from ..output_files import check_writable
from .parser import Listed, path, whole

MODELS = (
    "transformer",
    "cnn",
    "resnet18",
    "resnet50",
    "resnet152",
    "vgg16",
    "inception-v4",
    "densenet201",
    "bert-base",
    "bert-large",
    "resnet50-shapes",
    "small-shapes",
)
"""The models of `bench.workload`, named here so that help does not import PyTorch."""

MOST_THREADS = 1024
"""OpenMP ends the process where it cannot start as many threads as it is told to."""

_FILES = (".json", ".html", ".png", ".txt", ".csv", ".md", ".log")
"""Endings that show that a file is meant, not a folder."""


def add_methods(parser: argparse.ArgumentParser, explanation: str) -> None:
    """`--methods topk:0.01 powersgd:rank=4`, with spaces or commas."""
    parser.add_argument("--methods", nargs="+", metavar="METHOD", help=explanation)


def _add_numbers(
    parser: argparse.ArgumentParser,
    option: str,
    default: str,
    several: bool,
    explanation: str,
    most: int | None = None,
) -> None:
    """A number or, where a command takes several, numbers separated by commas."""
    numbers = [int(word) for word in default.split(",")]
    parser.add_argument(
        option,
        action=Listed,
        item=whole(most=most),
        single=not several,
        metavar="N",
        default=numbers if several else numbers[0],
        help=f"{explanation} (default {default})",
    )


def add_workers(parser: argparse.ArgumentParser, default: str = "2", *, several: bool) -> None:
    """`--workers 2` or, where a command takes several numbers, `--workers 2,4`."""
    _add_numbers(parser, "--workers", default, several, f"{'numbers' if several else 'number'} of workers")


def add_per_host(parser: argparse.ArgumentParser) -> None:
    """`--per-host 2`: workers of each virtual host."""
    parser.add_argument(
        "--per-host", type=whole(), default=1, metavar="N", help="workers on each host (default 1)"
    )


def add_threads(parser: argparse.ArgumentParser, default: str = "1", *, several: bool) -> None:
    """`--threads 1`: of each worker."""
    owner = "the process" if several else "a worker"
    _add_numbers(parser, "--threads", default, several, f"threads of {owner}", MOST_THREADS)


def add_models(parser: argparse.ArgumentParser, default: str) -> None:
    """`--model resnet50,bert-base`."""
    parser.add_argument(
        "--model",
        action=Listed,
        metavar="NAME",
        help=f"{', '.join(MODELS)}, or a function of yours as my_module:build (default {default})",
    )


def add_rates(parser: argparse.ArgumentParser, default: str) -> None:
    """`--rate loopback,100mbit,1gbit`."""
    parser.add_argument(
        "--rate",
        action=Listed,
        metavar="RATE",
        default=default.split(","),
        help="networks between the workers: link rates such as 100mbit or 2.5gbit, unlimited (a link without a "
        f"limit), loopback (no link) (default {default})",
    )


def add_batch_size(parser: argparse._ActionsContainer, default: str) -> None:
    """`--batch-size 64`."""
    parser.add_argument(
        "--batch-size",
        type=whole(),
        metavar="N",
        help=f"samples per worker and step (default {default})",
    )


def add_task(parser: argparse.ArgumentParser, explanation: str) -> None:
    """`--task mnist`; `--data` is its former name."""
    parser.add_argument("--task", nargs="+", metavar="NAME", help=explanation)
    parser.add_argument("--data", dest="task", nargs="+", help=argparse.SUPPRESS)


def add_out(parser: argparse.ArgumentParser, usual: Path) -> None:
    """`--out FOLDER`, or a file; `output_file` reads it."""
    parser.add_argument(
        "--out",
        type=path,
        metavar="PATH",
        help=f"folder for the results, or a file that ends in {usual.suffix} (default {usual})",
    )


def output_file(given: Path | None, usual: Path) -> Path:
    """The file that `--out` means: the given one, or one of the usual name in the given folder.

    >>> str(output_file(Path("mine"), Path("runs/bench/link.json")))
    'mine/link.json'
    >>> str(output_file(Path("mine/a.json"), Path("runs/bench/link.json")))
    'mine/a.json'
    """
    chosen = usual if given is None else given
    if given is not None and (given.is_dir() or given.suffix != usual.suffix):
        if given.suffix in _FILES and not given.is_dir():
            raise ConfigError(
                f"--out {given} must be a folder, or a file that ends in {usual.suffix}; "
                f"write {given.with_suffix(usual.suffix)}."
            )
        chosen = given / usual.name
    check_writable(chosen, "--out")
    return chosen


def note_defaults(texts: Sequence[str] | None) -> None:
    """Print the settings of methods that were named without any."""
    from ..bench.selection import bare

    if taken := bare(texts or ()):
        listed = ", ".join(f"{name} is {text}" for name, text in taken.items())
        print(f"Recommended settings: {listed}. To choose others, write for example topk:0.001.")
