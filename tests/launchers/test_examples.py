"""The files in examples/launchers: manifests parse and name what exists, batch scripts are valid."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

import grace_dl
from grace_dl.train.world import World, find

EXAMPLES = Path(__file__).resolve().parent.parent.parent / "examples" / "launchers"


def manifest(name: str) -> Any:
    (found,) = yaml.safe_load_all((EXAMPLES / name).read_text())
    return found


def check_configs(words: list[str]) -> None:
    """The config files of a command exist, and its overrides name settings."""
    place = words.index("--configs") + 1
    files = [word for word in words[place:] if word.endswith(".py")]
    assert files and all((Path(grace_dl.__file__).parent / file).exists() for file in files)
    assert words[-2:] == ["--configs.train.compression", "topk:0.01"]


def test_trainjob() -> None:
    job = manifest("trainjob.yaml")
    assert (job["apiVersion"], job["kind"]) == ("trainer.kubeflow.org/v1alpha1", "TrainJob")
    assert job["spec"]["runtimeRef"]["name"] == "torch-distributed"
    trainer = job["spec"]["trainer"]
    assert trainer["numNodes"] == 4 and trainer["numProcPerNode"] == 8
    assert trainer["command"] == ["torchrun", "-m", "grace_dl.cli"]
    assert all(isinstance(word, str) for word in trainer["args"])
    check_configs(trainer["args"])


def test_mpijob() -> None:
    job = manifest("mpijob.yaml")
    assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v2beta1", "MPIJob")
    specs = job["spec"]["mpiReplicaSpecs"]
    (launcher,) = specs["Launcher"]["template"]["spec"]["containers"]
    (worker,) = specs["Worker"]["template"]["spec"]["containers"]
    assert launcher["image"] == worker["image"]
    ranks = int(launcher["args"][launcher["args"].index("-np") + 1])
    assert ranks == specs["Worker"]["replicas"] * job["spec"]["slotsPerWorker"]
    assert (EXAMPLES.parent.parent / launcher["args"][-1]).exists()


@pytest.mark.parametrize("script", ["slurm.sbatch", "slurm_srun.sbatch"])
def test_batch_scripts(script: str, tmp_path: Path) -> None:
    """A batch script runs with stand-ins for Slurm's commands, which print what they would start."""
    text = (EXAMPLES / script).read_text()
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)
    (tmp_path / "srun").write_text('#!/bin/bash\necho "$@"\n')
    # More hosts than a pipe holds: a script that reads only the first must not fail when scontrol is cut off.
    (tmp_path / "scontrol").write_text("#!/bin/bash\nseq --format=node%.0f 100000\n")
    for tool in tmp_path.iterdir():
        tool.chmod(0o755)
    environment = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_JOB_NODELIST": "node[1-2]",
        "SLURM_GPUS_ON_NODE": "8",
    }
    done = subprocess.run(["bash"], input=text, text=True, env=environment, capture_output=True, check=True)
    words = done.stdout.split()
    check_configs(words)
    if words[0] == "torchrun":
        assert (
            "--nnodes=2" in words and "--nproc-per-node=8" in words and "--rdzv-endpoint=node1:29500" in words
        )


def test_tasks_of_srun_find_their_rank() -> None:
    step = {"SLURM_STEP_NUM_TASKS": "5", "SLURM_STEP_TASKS_PER_NODE": "2(x2),1", "SLURM_NTASKS": "5"}
    assert find({**step, "SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_NODEID": "1"}) == World(
        3, 5, 1, 2, "srun"
    )
    assert find({**step, "SLURM_PROCID": "4", "SLURM_LOCALID": "0", "SLURM_NODEID": "2"}) == World(
        4, 5, 0, 1, "srun"
    )
    # A batch script has some of these variables too, and so has an interactive shell: one process each.
    assert find({"SLURM_PROCID": "0", "SLURM_NTASKS": "5", "SLURM_LOCALID": "0"}) == World()
    assert find({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1", "SLURM_LOCALID": "0"}) == World()
    # torchrun under srun: its own variables count.
    inside = {"RANK": "9", "WORLD_SIZE": "16", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "8"}
    assert find({**step, "SLURM_PROCID": "1", **inside}) == World(9, 16, 1, 8, "torchrun")
