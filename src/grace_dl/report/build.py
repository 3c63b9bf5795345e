"""From result files to a page on disk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from ..errors import ConfigError
from ..formatting import slug
from ..output_files import check_writable, write_text
from . import accuracy, kernels, plan, plan_checks, steps, traffic
from .load import Result, read
from .page import Section, page

SECTIONS: dict[str, Callable[[Result, str], Section]] = {
    "link": steps.section,
    "step": steps.section,
    "accuracy": accuracy.section,
    "kernels": kernels.section,
    "traffic": traffic.section,
    "plan": plan.section,
    "plan-validation": plan_checks.section,
    "plan-check": plan_checks.section,
}
"""The section builder of each benchmark; sections appear in this order."""


def write(inputs: Sequence[Path], out: Path) -> Path:
    """Write the page; nothing is written if an input is invalid."""
    check_writable(out, "--out")
    if out.resolve() in {path.resolve() for path in inputs}:
        raise ConfigError(f"--out {out} is one of the result files and would be lost; name another file.")
    text = html(read(inputs))
    write_text(out, text)
    return out


def html(results: Sequence[Result]) -> str:
    """The page's text."""
    order = list(SECTIONS)
    ranked = sorted(results, key=lambda result: order.index(result.benchmark))
    sections = [
        SECTIONS[result.benchmark](result, f"s{place}-{slug(result.name)}")
        for place, result in enumerate(ranked, 1)
    ]
    titles = [section.title for section in sections]
    return page(
        [
            # Two files may hold the same benchmark of the same model; their names tell them apart.
            section
            if titles.count(section.title) == 1
            else replace(section, title=f"{section.title} ({result.name})")
            for section, result in zip(sections, ranked)
        ]
    )
