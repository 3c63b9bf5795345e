"""Data sets: sources in order, checksums, the cache, and the real thing."""

from __future__ import annotations

import hashlib
import io
import re
import tarfile
from pathlib import Path

import pytest

from grace_dl.data import DATASETS, DataError, cache_folder, fetch, load_images
from grace_dl.data.clients import sdist
from grace_dl.data.fetch import Dataset, Files, Report, Source, scratch
from grace_dl.errors import ConfigError

GOOD = b"all of it"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GRACE_DATA", str(tmp_path))
    return tmp_path


class Counting:
    """A source that counts how often it is asked."""

    def __init__(self, content: bytes | Exception) -> None:
        self.content = content
        self.asked = 0

    def __call__(self, folder: Path, report: Report) -> Files:
        self.asked += 1
        (folder / "half-done").write_bytes(b"...")
        if isinstance(self.content, Exception):
            raise self.content
        return {"file": self.content}


def dataset(*contents: bytes | Exception) -> tuple[Dataset, list[Counting]]:
    getters = [Counting(content) for content in contents]
    sources = tuple(Source(f"source {n}", getter) for n, getter in enumerate(getters))
    return Dataset("toy", "A toy", {"file": hashlib.sha256(GOOD).hexdigest()}, sources), getters


def test_first_working_source_wins_and_is_cached(cache: Path) -> None:
    toy, getters = dataset(OSError("no route"), b"tampered with", GOOD, GOOD)
    folder = fetch(toy)
    assert (folder / "file").read_bytes() == GOOD
    assert [g.asked for g in getters] == [1, 1, 1, 0]
    fetch(toy)
    assert [g.asked for g in getters] == [1, 1, 1, 0]
    # Nothing half-done stays behind.
    assert [p.name for p in cache.rglob("*") if p.is_file()] == ["file"]


def test_a_damaged_cache_is_fetched_again(cache: Path) -> None:
    toy, getters = dataset(GOOD)
    folder = fetch(toy)
    (folder / "file").write_bytes(b"damaged")
    assert (fetch(toy) / "file").read_bytes() == GOOD
    assert getters[0].asked == 2


def test_failure_names_every_source_and_the_remedy(cache: Path) -> None:
    toy, _ = dataset(OSError("no route"), b"tampered with")
    with pytest.raises(DataError) as info:
        fetch(toy)
    said = str(info.value)
    assert "source 0: OSError: no route" in said
    assert "source 1" in said
    assert "SHA-256" in said
    assert str(cache / "toy") in said
    assert not (cache / "toy" / "file").exists()


def test_cache_follows_the_desktop_rules(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("GRACE_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "grace_dl" / "data"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "grace_dl" / "data"


def test_unreachable_images_fall_back(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DATASETS, "mnist", dataset(OSError("no route"))[0])
    said: list[str] = []
    images = load_images("mnist", fallback=("digits",), report=said.append)
    assert images.name == "digits"
    assert any("no route" in line for line in said)
    with pytest.raises(DataError):
        load_images("mnist")


def test_digits_need_no_network() -> None:
    images = load_images("digits")
    assert images.train_x.shape == (1500, 1, 8, 8)
    assert images.test_x.shape == (297, 1, 8, 8)
    assert images.train_x.max() == 255


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ConfigError, match="mnist"):
        load_images("imagenet")


def test_real_images_come_from_somewhere() -> None:
    """MNIST where any source can be reached (into the user's own cache); the digits where none can."""
    images = load_images("mnist", fallback=("digits",))
    if images.name == "mnist":
        assert images.train_x.shape == (60000, 1, 28, 28)
        assert images.train_y.bincount().tolist()[:3] == [5923, 6742, 5958]
        assert abs(float(images.train_x.float().mean()) - 33.318) < 0.001
    assert len(images.train_x) == len(images.train_y)


def test_digests_are_whole() -> None:
    for item in DATASETS.values():
        for digest in item.digests.values():
            assert re.fullmatch(r"[0-9a-f]{64}", digest)
        assert item.sources


def test_scratch_is_gone_after_a_failure(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), scratch(tmp_path) as work:
        (work / "file").write_text("x")
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


def test_build_code_of_another_archive_does_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pip runs `setup.py` to learn a package's metadata; not before it has checked the archive."""
    ran = tmp_path / "ran"
    setup = f"open({str(ran)!r}, 'w').close()\nfrom setuptools import setup\nsetup(name='x', version='1')\n".encode()
    with tarfile.open(tmp_path / "x-1.tar.gz", "w:gz") as tar:
        for name, content in (("x-1/setup.py", setup), ("x-1/PKG-INFO", b"Name: x\nVersion: 1\n")):
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    work = tmp_path / "work"
    work.mkdir()
    with pytest.raises(DataError, match="Expected sha256"):
        sdist("x==1", "0" * 64, work)
    assert not ran.exists()
