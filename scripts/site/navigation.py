"""The order of the site's pages."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

METHODS = "docs/methods.md"
API = "api/index.md"

SECTIONS: dict[str, tuple[str, ...]] = {
    "Start": ("INSTALLING.md", "tutorials/README.md", "docs/compatibility.md"),
    "Guides": (
        "TRAINING.md",
        "docs/auto.md",
        "docs/slow_links.md",
        "docs/local_steps.md",
        "docs/onebit_adam.md",
        "docs/fsdp.md",
        "docs/lightning.md",
        "docs/accelerate.md",
        "docs/ray.md",
        "docs/horovod.md",
        "docs/launchers.md",
        "docs/dgc.md",
        "docs/acpsgd.md",
        "IMPLEMENTING.md",
    ),
    "How it works": (
        "docs/architecture.md",
        "docs/kernels.md",
        "docs/planning.md",
        "docs/checkpoints.md",
        "docs/accelerators.md",
    ),
    "Methods": (METHODS,),
    "Benchmarks": ("docs/benchmarks.md", "benchmarks/README.md"),
    "API": (API, "api/commands.md"),
    "Project": ("CHANGELOG.md", "CONTRIBUTING.md"),
}
"""Captions of the navigation and their pages, as paths from the root of the repository; `api/` is generated."""

OTHERS = "How it works"
"""The section of pages in `docs/` that no section lists."""

TITLES = {
    METHODS: "All methods",
    "tutorials/README.md": "Tutorials",
    "tutorials/torch/README.md": "PyTorch",
    "tutorials/tensorflow/README.md": "TensorFlow",
    "TRAINING.md": "Training: DDP, optimizers, loops",
    "docs/auto.md": "auto: compression where it pays",
    "docs/local_steps.md": "Local steps",
    "docs/onebit_adam.md": "1-bit Adam and 0/1 Adam",
    "docs/fsdp.md": "FSDP2",
    "docs/lightning.md": "Lightning",
    "docs/accelerate.md": "Accelerate and Trainer",
    "docs/ray.md": "Ray Train",
    "docs/horovod.md": "Horovod",
    "docs/launchers.md": "Launchers: torchrun, Slurm, …",
    "docs/dgc.md": "Deep gradient compression",
    "docs/acpsgd.md": "ACP-SGD",
    "docs/compatibility.md": "Compatibility",
    "IMPLEMENTING.md": "Implementing a method",
    "benchmarks/README.md": "Result files",
    "docs/accelerators.md": "Accelerators",
    API: "Python",
    "api/commands.md": "Command line",
}
"""Short titles for the navigation, where a page's own is long."""

CHILDREN = {"tutorials/README.md": ("tutorials/torch/README.md", "tutorials/tensorflow/README.md")}
"""Pages below another page."""


@dataclass(frozen=True)
class Navigation:
    """Sections with the pages that exist in a repository."""

    sections: dict[str, list[str]]

    @classmethod
    def of(cls, root: Path) -> Navigation:
        """The navigation for a repository; pages of `docs/` that no section lists are added to one."""
        sections = {caption: list(pages) for caption, pages in SECTIONS.items()}
        listed = {page for pages in sections.values() for page in pages}
        found = (path.relative_to(root).as_posix() for path in sorted((root / "docs").glob("*.md")))
        sections[OTHERS] += [page for page in found if page not in listed]
        return cls(sections)

    @property
    def sources(self) -> list[str]:
        """The pages that are files of the repository."""
        pages = [page for pages in self.sections.values() for page in pages]
        pages += [child for children in CHILDREN.values() for child in children]
        return [page for page in pages if not page.startswith("api/")]

    def trees(self) -> str:
        """The navigation as hidden toctrees, for the front page."""
        return "".join(toctree(pages, caption) for caption, pages in self.sections.items())


def toctree(pages: list[str] | tuple[str, ...], caption: str = "", base: str = "") -> str:
    """A hidden list of pages. Paths begin with `/`, so that they do not depend on the page they are written in."""
    lines = [f":caption: {caption}"] if caption else []
    for page in pages:
        target = "/" + base + page.removesuffix(".md")
        lines.append(f"{TITLES[page]} <{target}>" if page in TITLES else target)
    return "\n".join(["", "```{toctree}", ":hidden:", *lines, "```", ""])
