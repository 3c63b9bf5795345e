"""Measure on this machine: what methods cost in memory copies, and what an exchange costs beside plain DDP."""

from __future__ import annotations

import argparse
from pathlib import Path

SUMMARY = "measure compression on this machine"


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
        "step", help="one exchange of a model's gradients beside plain DDP", description=_step.__doc__
    )
    step.add_argument("--shapes", default="resnet50", help="resnet50 or small")
    step.add_argument("--methods", nargs="+", metavar="NAME", help="methods, with their defaults")
    step.add_argument("--workers", type=int, default=2, help="local workers, one thread each (default 2)")
    step.add_argument("--rounds", type=int, default=15, help="measured rounds (default 15)")
    for part in (kernels, step):
        part.add_argument("--out", type=Path, help="result file (default runs/bench/<what>.json)")
        part.add_argument("--fresh", action="store_true", help="measure everything anew")
        part.add_argument("--quick", action="store_true", help="small and short, to see that it works")


def run(arguments: argparse.Namespace) -> int:
    arguments.out = arguments.out or Path("runs/bench") / f"{arguments.what}.json"
    return {"kernels": _kernels, "step": _step}[arguments.what](arguments)


def _kernels(arguments: argparse.Namespace) -> int:
    """Time compressing (with error feedback) and decoding of each method, as multiples of copying the tensor."""
    from rich.console import Console
    from rich.progress import Progress

    from ...bench import show
    from ...bench.kernels import CASES, SIZES, measure
    from ...bench.results import Results
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
    console = Console()
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
    """Time one exchange of all gradients, with nothing to overlap, beside DDP alone in the same run."""
    from rich.console import Console
    from rich.progress import Progress

    from ...bench import show
    from ...bench.results import Results
    from ...bench.step import BASELINES, SHAPES, worker
    from ...errors import ConfigError
    from ...registry import method, unknown
    from ...workers import run_workers

    shapes = "small" if arguments.quick else arguments.shapes
    if shapes not in SHAPES:
        raise unknown("shapes", shapes, SHAPES)
    if arguments.workers < 1 or arguments.rounds < 1:
        raise ConfigError("--workers and --rounds must be positive.")
    chosen = [(name, {"compressor": method(name).name}) for name in arguments.methods or ()] or [
        ("none", {"compressor": "none"}),
        ("fp16", {"compressor": "fp16"}),
        ("int4", {"compressor": "int4"}),
        ("efsignsgd", {"compressor": "efsignsgd"}),
        ("topk 0.1 %", {"compressor": "topk", "compress_ratio": 0.001}),
        ("dgc 0.1 %", {"compressor": "dgc", "compress_ratio": 0.001}),
        ("acpsgd rank 4", {"compressor": "acpsgd", "rank": 4}),
        ("powersgd rank 4", {"compressor": "powersgd", "rank": 4}),
    ]
    candidates = [*((label, None) for label in BASELINES), *chosen]
    console = Console()
    settings = {"shapes": shapes, "workers": arguments.workers, "rounds": arguments.rounds}
    results = Results(arguments.out, "step", settings, arguments.fresh)
    if any(label not in results for label, _ in candidates):
        with Progress(console=console) as progress:
            task = progress.add_task("measuring", total=len(candidates) * (arguments.rounds + 2))
            records = run_workers(
                worker,
                arguments.workers,
                shapes,
                candidates,
                arguments.rounds,
                on_event=lambda rank, event: progress.advance(task) if rank == 0 else None,
            )[0]
        for record in records:
            results.add(record["label"], record)
    console.print(show.heading(results.header))
    console.print(show.step_table(list(results.records.values())))
    console.print(f"Figures: {arguments.out.resolve()}", soft_wrap=True)
    return 0
