"""Measure on this machine: methods in memory copies, training steps beside plain DDP, links of any speed."""

from __future__ import annotations

import argparse
from pathlib import Path

from .. import accuracy as accuracy_options

SUMMARY = "measure compression on this machine"
_MODELS = (
    "resnet18, resnet50, resnet152, vgg16, inception-v4, densenet201, bert-base, bert-large, transformer, cnn, "
    "resnet50-shapes, small-shapes"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parts = parser.add_subparsers(dest="what", metavar="what", required=True)
    kernels = parts.add_parser(
        "kernels", help="compress and decode, in copies of the same tensor", description=_kernels.__doc__
    )
    kernels.add_argument("--sizes", nargs="+", type=int, metavar="N", help="elements (default: 1e3 to 2.5e7)")
    kernels.add_argument("--methods", nargs="+", metavar="NAME", help="only these methods")
    kernels.add_argument("--backends", nargs="+", metavar="NAME", help="only these: reference, native")
    kernels.add_argument("--threads", nargs="+", type=int, default=[1, 2], help="thread counts (default 1 2)")
    step = parts.add_parser(
        "step", help="a training step and its parts, beside plain DDP", description=_step.__doc__
    )
    step.add_argument("--model", default="resnet50-shapes", help=f"{_MODELS}; several by commas")
    step.add_argument("--workers", type=int, default=2, help="workers in all (default 2)")
    step.add_argument("--hosts", help="hosts to spread them over, by commas, reached by ssh (default: here)")
    link = parts.add_parser(
        "link", help="the same between hosts joined by links of given rates", description=_link.__doc__
    )
    link.add_argument("--model", default="transformer", help=_MODELS)
    link.add_argument("--rate", default="100mbit,1gbit,10gbit,unlimited", help="link rates, by commas")
    link.add_argument("--workers", default="2", help="numbers of hosts, by commas (default 2)")
    traffic = parts.add_parser(
        "traffic",
        help="bytes that leave a rank, read from its network interface",
        description=_traffic.__doc__,
    )
    traffic.add_argument("--workers", default="2,4,8", help="numbers of hosts, by commas (default 2,4,8)")
    traffic.add_argument(
        "--numel", type=int, default=4_000_000, help="elements exchanged (default 4 million)"
    )
    for part in (step, link):
        part.add_argument(
            "--methods",
            nargs="+",
            metavar="NAME",
            help="these methods beside the baselines, or all; exactly these if ssgd (plain DDP) is among them",
        )
        part.add_argument("--rank", type=int, help="rank of low-rank methods (default: their own, 4)")
        part.add_argument(
            "--through",
            default="ddp",
            metavar="DOOR",
            help="what methods are attached to: ddp (default), optimizer, or both by commas",
        )
        part.add_argument(
            "--batch-size", type=int, help="samples a worker and step (default: the model's own)"
        )
        part.add_argument("--image-size", type=int, help="pixels a side (default 224; inception-v4: 299)")
        part.add_argument("--length", type=int, help="words of a sentence (default 64)")
        part.add_argument("--threads", type=int, default=1, help="threads of a worker (default 1)")
        part.add_argument("--rounds", type=int, default=15, help="steps measured, at most (default 15)")
    accuracy = parts.add_parser(
        "accuracy",
        help="final accuracy and time to reach one, over seeds and link rates",
        description=_accuracy.__doc__,
    )
    accuracy_options.add_arguments(accuracy)
    for part in (kernels, step, link, traffic, accuracy):
        part.add_argument("--out", type=Path, help="result file (default runs/bench/<what>.json)")
        part.add_argument("--fresh", action="store_true", help="measure everything anew")
        part.add_argument("--quick", action="store_true", help="small and short, to see that it works")


def run(arguments: argparse.Namespace) -> int:
    arguments.out = arguments.out or Path("runs/bench") / f"{arguments.what}.json"
    commands = {"kernels": _kernels, "step": _step, "link": _link, "traffic": _traffic, "accuracy": _accuracy}
    return commands[arguments.what](arguments)


def _kernels(arguments: argparse.Namespace) -> int:
    """Time compressing (with error feedback) and decoding of each method, as multiples of copying the tensor."""
    from rich.progress import Progress

    from ...bench import show
    from ...bench.kernels import CASES, SIZES, measure
    from ...bench.results import Results
    from ...console import output
    from ...errors import ConfigError
    from ...kernels import backend
    from ...registry import unknown

    names = {method for method, _ in CASES.values()}
    for name in arguments.methods or ():
        if name not in names:
            raise unknown("method", name, sorted(names))
    sizes = arguments.sizes or ((1_000, 100_000) if arguments.quick else SIZES)
    backends = arguments.backends or ["reference", "native"]
    for name in backends:
        backend(name, "cpu")
    if min(arguments.threads) < 1 or min(sizes) < 1:
        raise ConfigError("sizes and thread counts must be positive.")
    console = output()
    settings = {"sizes": list(sizes), "threads": arguments.threads, "backends": backends}
    results = Results(arguments.out, "kernels", settings, arguments.fresh)
    todo = [
        (f"{label}/{name}/{threads}/{numel}", label, name, threads, numel)
        for numel in sizes
        for label, (method, _) in CASES.items()
        if not arguments.methods or method in arguments.methods
        for name in backends
        for threads in arguments.threads
    ]
    with Progress(console=console) as progress:
        task = progress.add_task("measuring", total=len(todo))
        for identity, label, name, threads, numel in todo:
            progress.update(task, description=f"{label}, {name}, {numel:,}")
            if identity not in results:
                results.add(identity, measure(label, name, threads, numel))
            progress.advance(task)
    records = list(results.records.values())
    console.print(show.heading(results.header))
    for numel in sizes:
        console.print(show.kernels_table(records, numel))
    picture = arguments.out.with_suffix(".png")
    show.kernels_picture(results.header, records, picture)
    console.print(f"Figures: {arguments.out.resolve()}", soft_wrap=True)
    console.print(f"Picture: {picture.resolve()}", soft_wrap=True)
    return 0


def _step(arguments: argparse.Namespace) -> int:
    """Time a training step of each method and its parts, beside DDP alone and a step that sends nothing."""
    from ...bench.steps import measure_local

    return measure_local(arguments)


def _link(arguments: argparse.Namespace) -> int:
    """Time training steps between hosts joined by links of given rates, made on this machine from network
    namespaces (needs root; nothing of the real network is touched)."""
    from ...bench.steps import measure_links

    return measure_links(arguments)


def _traffic(arguments: argparse.Namespace) -> int:
    """Count the bytes that leave each rank on the network interface of its own host, beside those reported (needs
    root, as `link` does)."""
    from ...bench.steps import measure_traffic

    return measure_traffic(arguments)


def _accuracy(arguments: argparse.Namespace) -> int:
    """Train a task with each method, for several seeds and at given link rates, beside float32 and bf16: final accuracy, and
    the time to reach one. Runs that are finished are not repeated, an interrupted one goes on at its last checkpoint."""
    from ...bench.accuracy import measure_accuracy

    return measure_accuracy(arguments)
