"""Sphinx's configuration. Nothing is fetched from elsewhere: the site also works from a folder, without a network."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))

from scripts.site.docstrings import to_rst  # noqa: E402
from sphinx.ext.autodoc.mock import MockFinder  # noqa: E402

import grace_dl  # noqa: E402

project = "GRACE"
author = "GRACE contributors"
project_copyright = author
version = release = grace_dl.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.viewcode"]
source_suffix = {".md": "markdown"}
myst_heading_anchors = 3
myst_links_external_new_tab = False

autodoc_mock_imports = ["accelerate", "horovod", "keras", "lightning", "ray", "tensorflow", "transformers"]
"""Frameworks that need not be installed to describe the adapters for them."""
sys.meta_path.insert(0, MockFinder(autodoc_mock_imports))  # for the whole build: bases are looked up later
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
add_module_names = True

html_theme = "furo"
html_title = f"GRACE {version}"
html_static_path = [str(Path(__file__).parent / "static")]
html_css_files = ["site.css"]
html_extra_path = [str(ROOT / "benchmarks" / "report.html")]
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
pygments_style = "friendly"
pygments_dark_style = "monokai"
html_theme_options = {"navigation_with_keys": True}


def read_docstring(app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Docstrings are written for readers of the source; turn them into what Sphinx reads."""
    described = name.startswith("grace_dl.methods.")  # on the same page already
    lines[:] = [] if described else to_rst("\n".join(lines))


def mend_backlinks(app: Any, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """Pages of source code link back to the reference as if all names of a module were described under one prefix."""
    if not page.startswith("_modules/grace_dl"):
        return
    known = app.env.domains.python_domain.objects
    module = page.removeprefix("_modules/").replace("/", ".")

    def mend(match: re.Match[str]) -> str:
        rest = match[2].removeprefix(f"{module}.").removeprefix("grace_dl.")
        valid = [name for name in (match[2], f"grace_dl.{rest}", f"{module}.{rest}") if name in known]
        return f'{match[1]}{valid[0]}"' if valid else match[0]

    context["body"] = re.sub(r'(href="[^"#]*#)(grace_dl\.[\w.]+)"', mend, context["body"])


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.connect("autodoc-process-docstring", read_docstring)
    app.connect("html-page-context", mend_backlinks)
