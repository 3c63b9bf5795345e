"""Pages in a real browser: headless Chromium, without a network."""

from __future__ import annotations

import json
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

needs_browser = pytest.mark.skipif(
    CHROMIUM is None, reason="Chromium is not installed: apt-get install chromium"
)

WATCH = """<script>
window.found = [];
addEventListener("error", (event) => found.push(String(event.message)));
addEventListener("unhandledrejection", (event) => found.push(String(event.reason)));
addEventListener("securitypolicyviolation", (event) => found.push("blocked " + event.blockedURI));
</script>"""

TELL = """
  const box = document.createElement("pre");
  box.id = "told";
  box.textContent = JSON.stringify(told);
  document.body.append(box);
"""
"""The end of a script that asks a page: puts the object `told` into it."""


def browse(page: Path | str, profile: Path, *options: str) -> str:
    """What Chromium prints about a page: with `--dump-dom`, its document after it has run."""
    quiet = "--disable-gpu --disable-background-networking --disable-component-update --disable-sync --no-first-run"
    # Names resolve to nothing, so that a request, had there been one, would fail and be told.
    command = [
        CHROMIUM,
        "--headless",
        "--no-sandbox",
        *quiet.split(),
        "--host-resolver-rules=MAP * ~NOTFOUND",
    ]
    address = page.as_uri() if isinstance(page, Path) else page
    command += [f"--user-data-dir={profile}", "--window-size=1000,1400", *options, address]
    done = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, timeout=120, check=True
    )
    return done.stdout


def ask(page: Path, watched: Path, script: str, profile: Path, *options: str) -> dict[str, Any]:
    """What a page says of itself: `script` runs in a copy of it, `watched`, and ends with `TELL`."""
    text = page.read_text("utf-8")
    watched.write_text(
        text.replace("<meta charset", f"{WATCH}<meta charset", 1).replace("</body>", f"{script}</body>"),
        "utf-8",
    )
    shown = browse(watched, profile, "--dump-dom", *options)
    told: dict[str, Any] = json.loads(unescape(shown.split('<pre id="told">')[1].split("</pre>")[0]))
    return told
