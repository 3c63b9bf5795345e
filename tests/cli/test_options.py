"""One command line: options mean the same everywhere, and every wrong input is one line with exit code 2."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from grace_dl.bench import virtual_hosts, workload
from grace_dl.bench.results import SCHEMA
from grace_dl.cli import options
from grace_dl.cli.completion import script
from grace_dl.cli.main import EXAMPLES, build_parser, main, subcommands
from grace_dl.cli.parser import Parser

BENCHMARKS = ("kernels", "step", "link", "traffic", "accuracy")


def commands(parser: Any, name: str = "grace") -> dict[str, Parser]:
    """Every parser by its full name."""
    found = {name: parser}
    for action in parser._actions:
        if isinstance(action.choices, dict):
            for word, part in action.choices.items():
                found.update(commands(part, f"{name} {word}"))
    return found


COMMANDS = commands(build_parser())


def outcome(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """The exit code of a command and what it said on stderr, however it ends."""
    try:
        code = main(words)
    except SystemExit as leaving:
        code = int(leaving.code or 0)
    return code, capsys.readouterr().err


def test_help_fits_a_screen(capsys: pytest.CaptureFixture[str]) -> None:
    assert outcome(["--help"], capsys)[0] == 0
    with pytest.raises(SystemExit):
        main(["--help"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 24 and max(map(len, lines)) <= 80


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "grace"])
def test_every_help_has_examples_that_parse(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    shown = COMMANDS[name].format_help()
    assert max(map(len, shown.splitlines())) <= 100
    lines = shown.partition("examples:\n")[2].split("\n\n")[0].splitlines()
    assert lines
    for line in lines:
        assert name.split()[1] in line
        if line.strip().startswith("grace "):
            build_parser().parse_args(shlex.split(line.partition(" > ")[0])[1:])


def test_examples_of_the_whole_command_parse() -> None:
    for line in EXAMPLES:
        build_parser().parse_args(shlex.split(line)[1:])


def test_a_module_of_commands_has_all_that_a_command_needs() -> None:
    for module in subcommands().values():
        assert module.SUMMARY and module.EXAMPLES and module.__doc__


def test_models_in_help_are_those_that_exist() -> None:
    assert set(options.MODELS) == set(workload.MODELS)


@pytest.mark.parametrize("form", ["2,4", "2 4", "2, 4", "2,4,2"])
@pytest.mark.parametrize("name", ["step", "link", "traffic", "accuracy"])
def test_lists_are_written_with_commas_or_spaces(name: str, form: str) -> None:
    parsed = build_parser().parse_args(["bench", name, "--workers", *form.split(" ")])
    assert parsed.workers == [2, 4]


def test_former_names_of_options_still_work() -> None:
    parse = build_parser().parse_args
    assert parse(["demo", "--data", "mnist", "--batch", "8"]).task == ["mnist"]
    assert parse(["demo", "--batch", "8"]).batch_size == 8
    for words in (["-np", "3"], ["--num-proc", "3"], ["--workers", "3"]):
        assert parse(["train", "--configs", "x.py", *words]).workers == 3


def test_quick_does_not_replace_what_is_given(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, said = outcome(["bench", "step", "--quick", "--model", "resnet51", "--out", str(tmp_path)], capsys)
    assert code == 2 and "resnet51" in said and "resnet50" in said
    from grace_dl.cli.commands.bench.step import workloads_of

    parse = build_parser().parse_args
    assert [str(w) for w in workloads_of(parse(["bench", "step", "--quick", "--model", "cnn"]), "x")] == [
        "cnn"
    ]
    assert [str(w) for w in workloads_of(parse(["bench", "step", "--quick"]), "x")] == ["small-shapes"]


def test_a_bare_name_says_which_setting_it_takes(capsys: pytest.CaptureFixture[str]) -> None:
    options.note_defaults(["topk,dgc", "int8", "powersgd:2", "ssgd"])
    assert capsys.readouterr().out.startswith("Recommended settings: topk is topk:0.01, dgc is dgc:0.001.")
    options.note_defaults(["topk:0.1", "schedule(0=none; 5=topk:0.1)"])
    assert capsys.readouterr().out == ""


def test_out_is_a_folder_or_a_file(tmp_path: Path) -> None:
    usual = Path("runs/bench/link.json")
    assert options.output_file(tmp_path, usual) == tmp_path / "link.json"
    assert options.output_file(tmp_path / "v1.2", usual) == tmp_path / "v1.2" / "link.json"
    assert options.output_file(tmp_path / "a.json", usual) == tmp_path / "a.json"
    (tmp_path / "b.json").mkdir()
    assert options.output_file(tmp_path / "b.json", usual) == tmp_path / "b.json" / "link.json"


WRONG = [
    ("", "required"),
    ("benhc", "'bench'"),
    ("bench", "required"),
    ("bench lnik", "'link'"),
    ("bench link --rates 1gbit", "'--rate'"),
    ("bench link --rate 1gbps", "100mbit"),
    ("bench link --rate ,", "empty list"),
    ("bench link --workers two", "whole number"),
    ("bench link --workers 0", "at least 1"),
    ("bench link --workers -1", "at least 1"),
    ("bench link --methods topk:2", "ratio=2"),
    ("bench link --methods tpok", "'topk'"),
    ("bench link --methods topk:rank=4", "rank"),
    ("bench link --methods ,", "empty"),
    ("bench link --model rasnet50", "'resnet50'"),
    ("bench link --batch-size 0", "at least 1"),
    ("bench link --batch-size 1.5", "'1.5'"),
    ("bench link --rounds 2", "at least 3"),
    ("bench link --threads 1,2", "one value"),
    ("--verison", "unknown option '--verison' (did you mean '--version'?)"),
    ("bench link --threads 100000", "'100000' must be at most 1024"),
    ("bench link --workers 300 --rate 1gbit", "300 hosts joined by links are too many; at most 254"),
    ("bench step --workers 1000000 --quick", "1000000 workers need at least"),
    ("train --configs configs/synthetic.py --workers 1000000", "1000000 workers need at least"),
    ("bench step --workers 2 --workers 3", "--workers is given twice; give it once, with all its values"),
    ("bench link --methods int8 --quick --methods=topk", "--methods is given twice"),
    ("train --configs configs/synthetic.py --configs configs/mnist.py", "--configs is given twice"),
    ("bench kernels --out " + 300 * "a" + ".json", "too long"),
    ("bench kernels --out new/" + 300 * "a" + ".json", "too long"),
    ("bench accuracy --seeds 99999999999999999999", "'99999999999999999999' must be at most"),
    ("train --configs configs/synthetic.py --configs.seed 99999999999999999999", "configs.seed=9999"),
    (r"""train --configs configs/synthetic.py --configs.train.save_path '"a\0b"'""", "null character"),
    ("methods topk:0.1,memory=[]", "memory=[] must be the name of a memory"),
    ("methods '" + 300 * "schedule(0=" + "none" + 300 * ")" + "'", "nests brackets more than 20 deep"),
    ("report half.json", "half a character"),
    ("plan --profile half.json", "half a character"),
    ("bench link --through dpd", "'ddp'"),
    ("bench link --length 10 --model cnn", "--length 10"),
    ("bench step --image-size 5 --model resnet18", "--image-size 5"),
    ("bench step --hosts a a", "twice"),
    ("bench step --hosts a b c", "evenly"),
    ("bench step --hosts=-oProxyCommand=x", "-oProxyCommand"),
    ("bench kernels --sizes 1e6", "whole number"),
    ("bench kernels --backends navite", "'native'"),
    ("bench kernels --methods ddp", "baseline"),
    ("bench kernels --sizes 99999999999999999", "this machine has"),
    ("bench traffic --numel 99999999999999999", "this machine has"),
    ("bench link --latency 1ms", "unknown option '--latency'; see"),
    ("bench traffic --numel -5", "at least 1"),
    ("bench accuracy --seeds one", "whole number"),
    ("bench accuracy --epochs 0", "at least 1"),
    ("bench accuracy --target 150", "percentage"),
    ("bench accuracy --target x", "positive number"),
    ("bench accuracy --task nosuch.py", "nosuch.py"),
    ("bench accuracy --from-runs nosuch", "nosuch"),
    ("bench accuracy --configs.train.batch_size", "needs a value"),
    ("bench accuracy --quick --configs.train.bach_size 5", "batch_size"),
    ("bench accuracy --from-runs run", "run cannot be read as a training run"),
    ("plan --parameters 1M --backward 1ms --report file/x", "not a folder"),
    ("demo --task mnist digits", "one task"),
    ("demo --rate loopback 5x", "100mbit"),
    ("demo --task fashion-minst", "'fashion-mnist'"),
    ("demo --epochs -1", "positive number"),
    ("demo --workers 1,2", "one value"),
    ("demo --methods topk:nosuch=1", "nosuch"),
    ("data imagenet", "imagenet"),
    ("methods topkk", "'topk'"),
    ("methods topk extra", "'extra'"),
    ("methods topk:", "'topk:' ends where its settings should follow"),
    ("methods hierarchical", "in brackets, as in hierarchical(inner=none; outer=int4)"),
    ("horovod build --source nosuch.tar.gz", "--source 'nosuch.tar.gz' is no file or folder"),
    ("methods --json --markdown", "not allowed"),
    ("horovod chekc", "'check'"),
    ("horovod build --jobs 0", "at least 1"),
    ("horovod check --python /nosuch/python", "/nosuch/python"),
    ("horovod check --python true", "--python true does not answer as a Python interpreter (it ended with"),
    ("report nosuch.json", "nosuch.json"),
    ("report list.json", "list.json is not a result file of a benchmark: it has no schema"),
    ("report many.json", "many.json: record 1: workers='many' must be a whole number"),
    ("report .", "is a folder"),
    ("report --out page.txt text.json", ".html"),
    ("train", "--configs"),
    ("train --configs nosuch.py", "nosuch.py"),
    ("train --configs configs/synthetic.py --workers none", "whole number"),
    ("train --configs configs/synthetic.py -np 0", "at least 1"),
    ("train --configs configs/synthetic.py --suffix /../../x", "--suffix"),
    ("train --configs configs/synthetic.py --devices tpu", "tpu"),
    ("train --configs broken.py", "broken.py"),
    ("train --configs latin.py", "latin.py, line 2: byte 0xe9 is not UTF-8"),
    ("train --configs null.py", "null.py: source code"),
    ("train --configs leaves.py", "leaves.py, line 1: SystemExit: 0"),
    ("completion fish", "bash"),
    ("plan --codec-speed 0 --model cnn", "positive number"),
    ("plan --threads x", "whole number"),
    ("plan --out x.txt", ".json"),
    ("plan", "`-- COMMAND` that starts training"),
    ("plan --profile nosuch.json", "grace.profile(model)"),
    ("plan --profile text.json", "grace.profile(model)"),
    (
        "plan --parameters 1M --backward 1ms --rate 1gbit",
        "unknown option '--rate' (write --cluster 8x1@10gbit",
    ),
    ("plan --parameters 1M --backward 1ms --workers=4", "(write --cluster 8x1@10gbit"),
    ("plan --parameters 1M --backward -5ms", "'-5ms'"),
    ("bench link --rate -5mbit", "'-5mbit'"),
    ("bench step --hosts ''", "--hosts ''"),
    ("methods ''", "''"),
    ("horovod check --python ''", "--python ''"),
    ("plan --parameters 1M --backward 1ms --batch-size 4", "--batch-size 4 means nothing without --model"),
    ("plan --parameters 1M --backward 1ms --methods ''", "the list of methods is empty"),
    *(
        (f"{name} ''", "'' is not a path")
        for name in ("report", "bench accuracy --from-runs", "plan --profile")
    ),
    *((f"{name} --out ''", "--out: ''") for name in ("bench link", "demo", "report good.json")),
    *((f"bench {name} --quick --out file/x", "not a folder") for name in BENCHMARKS),
    *((f"bench {name} --quick --out x.txt", ".json") for name in BENCHMARKS),
    *((f"bench {name} --quick --out text.json", "text.json") for name in BENCHMARKS),
    ("demo --out file/x", "not a folder"),
    ("report good.json --out file/x", "not a folder"),
    ("report text.json", "text.json"),
    ("train --configs configs/synthetic.py --configs.train.save_path file/x", "file"),
]


@pytest.mark.parametrize(("line", "said"), WRONG)
def test_wrong_input_is_one_line(
    line: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("a file where a folder belongs")
    (tmp_path / "text.json").write_text("no JSON")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text('{"configs": {"se')  # cut off
    (tmp_path / "run" / "log.jsonl").write_text("")
    (tmp_path / "half.json").write_text('{"schema": 2, "model": "\\ud800"}')  # half of a surrogate pair
    (tmp_path / "broken.py").write_text("nonsense here")
    (tmp_path / "latin.py").write_bytes("x = 1\n# é".encode("latin-1"))
    (tmp_path / "null.py").write_bytes(b"x = 1\n\0")
    (tmp_path / "leaves.py").write_text("raise SystemExit(0)")
    header = {"schema": SCHEMA, "command": [], "date": "", "machine": {}, "settings": {}}
    record = {
        "method": "topk",
        "workers": 2,
        "numel": 1,
        "payload_bytes": 1,
        "leaving_bytes": 1,
        "measured_bytes": 1,
    }
    (tmp_path / "good.json").write_text(json.dumps({**header, "benchmark": "traffic", "records": [record]}))
    many = {**header, "benchmark": "traffic", "records": [{**record, "workers": "many"}]}
    (tmp_path / "many.json").write_text(json.dumps(many))
    (tmp_path / "list.json").write_text("[]")
    before = sorted(tmp_path.iterdir())
    code, error = outcome(shlex.split(line), capfd)  # type: ignore[arg-type]
    assert code == 2, error
    assert error.startswith("grace") and said in error, error
    assert error.count("\n") == 1 and error.endswith("\n") and "Traceback" not in error, error
    assert sorted(tmp_path.iterdir()) == before, "nothing is written"


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc, where nobody can create a file")
@pytest.mark.parametrize(
    "line",
    [
        *(f"bench {name} --quick" for name in BENCHMARKS),
        "demo",
        "plan --parameters 1M --backward 1ms",
        "report good.json",
    ],
)
def test_a_place_where_root_cannot_write_either_is_rejected_first(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "good.json").write_text(
        json.dumps(
            {
                "schema": SCHEMA,
                "benchmark": "traffic",
                "command": [],
                "date": "",
                "machine": {},
                "settings": {},
                "records": [],
            }
        )
    )
    code = main([*shlex.split(line), "--out", "/proc/x"])
    said = capfd.readouterr()
    assert code == 2 and "--out /proc/x" in said.err and "name another place" in said.err, said.err
    assert said.out == "" and said.err.count("\n") == 1, "before any work"


def test_results_are_complete_without_the_extra_for_plots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    words = "bench kernels --methods none --sizes 1000 --threads 1 --backends reference --out".split()
    assert main([*words, str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "No plot: plots need matplotlib: pip install 'grace-dl[demo]'" in said
    assert [path.name for path in tmp_path.iterdir()] == ["kernels.json"]


def test_completion_in_bash(tmp_path: Path) -> None:
    (tmp_path / "grace.bash").write_text(script("bash", build_parser()))
    ask = """
    source "$1"
    complete_() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=(); _grace; echo "${COMPREPLY[@]}"; }
    complete_ grace me
    complete_ grace bench li
    complete_ grace bench link --methods int8 top
    complete_ grace bench link --wor
    complete_ grace methods power
    complete_ grace horovod ch
    """
    done = subprocess.run(
        ["bash", "-c", ask, "bash", str(tmp_path / "grace.bash")], capture_output=True, text=True, check=True
    )
    assert done.stdout.split("\n") == ["methods", "link", "topk", "--workers", "powersgd", "check", ""]


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed: apt-get install zsh")
def test_completion_in_zsh(tmp_path: Path) -> None:
    (tmp_path / "_grace").write_text(script("zsh", build_parser()))
    ask = """
    compdef() { : }
    source "$1"
    compadd() { shift; print -- "${(M)@:#${words[CURRENT]}*}" }
    words=(grace bench link --methods top) CURRENT=5
    _grace
    """
    done = subprocess.run(
        ["zsh", "-c", ask, "zsh", str(tmp_path / "_grace")], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["topk"]


@pytest.mark.skipif(virtual_hosts.able() is not None, reason=f"{virtual_hosts.able()}")
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="dropping privileges needs setpriv (util-linux)")
def test_links_need_no_root(tmp_path: Path) -> None:
    # Root without the capabilities is what an ordinary user is: namespaces can be made in a user namespace only.
    drop = "setpriv --bounding-set=-sys_admin,-net_admin --inh-caps=-sys_admin,-net_admin".split()
    out = tmp_path / "traffic.json"
    words = ["bench", "traffic", "--numel", "1000", "--workers", "2", "--methods", "none", "--out", str(out)]
    done = subprocess.run(
        [*drop, sys.executable, "-m", "grace_dl.cli", *words], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    (record,) = json.loads(out.read_text())["records"]
    assert record["measured_bytes"] > record["leaving_bytes"] > 0
    assert record["backend"] in ("native", "reference")
