"""From result files to a page on disk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from ..errors import ConfigError
from ..formatting import slug
from . import accuracy, kernels, steps, traffic
from .load import Result, read
from .page import Section, page

SECTIONS: dict[str, Callable[[Result, str], Section]] = {
    "link": steps.section,
    "step": steps.section,
    "accuracy": accuracy.section,
    "kernels": kernels.section,
    "traffic": traffic.section,
}
"""The section builder of each benchmark; sections appear in this order."""


def write(inputs: Sequence[Path], out: Path) -> Path:
    """Write the page; nothing is written if an input is invalid."""
    if out.is_dir():
        raise ConfigError(f"--out {out} is a folder; name a file in it, such as {out / 'report.html'}.")
    if out.resolve() in {path.resolve() for path in inputs}:
        raise ConfigError(f"--out {out} is one of the result files and would be lost; name another file.")
    text = html(read(inputs))
    out.parent.mkdir(parents=True, exist_ok=True)
    draft = out.with_name(f".{out.name}.part")
    draft.write_text(text, "utf-8")
    draft.replace(out)
    return out


def html(results: Sequence[Result]) -> str:
    """The page's text."""
    order = list(SECTIONS)
    ranked = sorted(results, key=lambda result: order.index(result.benchmark))
    return page(
        [
            SECTIONS[result.benchmark](result, f"s{place}-{slug(result.name)}")
            for place, result in enumerate(ranked, 1)
        ]
    )
