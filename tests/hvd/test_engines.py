"""What needs launches of its own: one result on all engines, process sets, failures, the launchers, the documents."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from contract.cases import CASES, bits_equal, run
from hvd import ddp_cases
from hvd.cluster import ROOT, launch, settings
from hvd.steps import NAME, STEPS, sequence

CODE = re.compile(r"^```py\n(.*?)^```", re.DOTALL | re.MULTILINE)


def test_ddp_gives_the_bits_of_horovod(request):
    """test_torch.py and test_tensorflow.py hold Horovod to the simulated world; here DDP is held to it."""
    ranks = request.getfixturevalue("launch")(ddp_cases.contract, 2, timeout=300)
    for case in CASES:
        results, _ = run(2, case, [sequence(r, 2) for r in range(2)], NAME)
        for step in range(STEPS + 2):
            for rank in range(2):
                mine = ranks[rank][str(case)][step]
                assert bits_equal(mine, results[0][step]) or (step == STEPS and mine.isnan().any()), (
                    case,
                    step,
                )


def test_process_sets():
    answers = launch(3, "other_cases", ["process_sets"])["process_sets"]
    for name, (parameters, steps) in answers[0].items():
        assert bits_equal(parameters, answers[2][name][0]) and steps == 4, name
        assert not torch.equal(parameters, answers[1][name][0]) and answers[1][name][1] == 0, name


def test_process_sets_with_tensorflow():
    answers = launch(3, "tf_sets_cases", ["process_sets"])["process_sets"]
    assert [answer["pair"] for answer in answers] == pytest.approx([2.0, 2.0, 2.0], rel=1e-2)
    assert [answer["all"] for answer in answers] == pytest.approx([2.0, 2.0, 2.0], rel=1e-2)


def test_training_goes_on_after_horovod_is_initialised_again():
    answers = launch(2, "other_cases", ["again"])["again"]
    assert bits_equal(answers[0]["parameters"], answers[1]["parameters"])
    assert all(answer["owed"] > 0 and answer["steps"] == [3] for answer in answers)


def test_the_death_of_a_rank_is_told_to_the_others():
    ranks = launch(3, "other_cases", ["death"], timeout=200)
    for rank in range(2):
        outcome = ranks._outcomes["death"][rank]
        assert outcome.error is None and "look at its log" in outcome.value


@pytest.mark.parametrize("place, framework", [(0, "torch"), (1, "tensorflow")])
def test_the_documents_run_under_horovodrun(tmp_path: Path, place: int, framework: str):
    """Page by page as a reader would, on two ranks and on one."""
    page = (ROOT / "docs" / "horovod.md").read_text()
    code = "".join(block for block in CODE.findall(page) if page.find(block) > 0)
    split = code.index("# Horovod TensorFlow")
    script = tmp_path / f"page_{framework}.py"
    script.write_text((code[:split], code[split:])[place] + '\nprint("reached the end")\n')
    env = {**os.environ, **settings()}
    env["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), env["PATH"]])
    for prefix, ranks in (([], 1), (["horovodrun", "-np", "2", "--gloo"], 2)):
        done = subprocess.run(
            [*prefix, sys.executable, str(script)],
            env=env,
            capture_output=True,
            text=True,
            timeout=240,
            cwd=tmp_path,
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        assert done.stdout.count("reached the end") == ranks
