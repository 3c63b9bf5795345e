"""Completion scripts, generated from the parsers: a table of words for each command, and a few lines of shell."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from ..catalog import builtin_names
from ..data import DATASETS
from .options import MODELS

VALUES = {
    "--methods": builtin_names,
    "--model": lambda: MODELS,
    "--task": lambda: ("cifar", "mnist", "synthetic", "fashion-mnist", "digits"),
    "--rate": lambda: ("loopback", "100mbit", "1gbit", "10gbit", "unlimited"),
    "--through": lambda: ("ddp", "optimizer", "fsdp", "hsdp"),
    "--backends": lambda: ("reference", "native"),
}
"""Words that follow an option; after other options files are completed."""

POSITIONAL = {"grace methods": builtin_names, "grace data": lambda: tuple(DATASETS)}
"""Words that follow a command, besides its subcommands and choices."""

BASH = """\
# Completion of `grace` for bash: eval "$(grace completion bash)"
_grace() {{
  local word="${{COMP_WORDS[COMP_CWORD]}}" path="grace" option="" words="" i
  for ((i = 1; i < COMP_CWORD; i++)); do
    case "${{COMP_WORDS[i]}}" in
      -*) option="${{COMP_WORDS[i]}}" ;;
      *) case " {paths} " in
           *" $path/${{COMP_WORDS[i]}} "*) path="$path/${{COMP_WORDS[i]}}" option="" ;;
         esac ;;
    esac
  done
{table}
  COMPREPLY=($(compgen -W "$words" -- "$word"))
}}
complete -o default -F _grace grace
"""

ZSH = """\
#compdef grace
# Completion of `grace` for zsh: write this to a file _grace in a folder of $fpath.
_grace() {{
  local word="${{words[CURRENT]}}" path_="grace" option="" found="" i
  for ((i = 2; i < CURRENT; i++)); do
    case "${{words[i]}}" in
      -*) option="${{words[i]}}" ;;
      *) case " {paths} " in
           *" $path_/${{words[i]}} "*) path_="$path_/${{words[i]}}" option="" ;;
         esac ;;
    esac
  done
{table}
  compadd -- ${{=found}}
  [[ -n "$found" ]] || _files
}}
if [[ "${{funcstack[1]}}" == _grace ]]; then _grace "$@"; else compdef _grace grace; fi
"""


def script(shell: str, parser: argparse.ArgumentParser) -> str:
    """The script for a shell."""
    path, words = ("$path", "words") if shell == "bash" else ("$path_", "found")
    commands = dict(_commands(parser, "grace"))
    lines = [f'  case "{path}" in']
    for name, (options, choices) in commands.items():
        slashed = name.replace(" ", "/")
        lines.append(f"    {slashed}) {words}='{' '.join([*choices, *options])}' ;;")
    lines += ["  esac", '  case "$option" in']
    for option, values in VALUES.items():
        lines.append(f'    {option}) {words}="{" ".join(values())} ${words}" ;;')
    lines.append("  esac")
    paths = " ".join(name.replace(" ", "/") for name in commands)
    return (BASH if shell == "bash" else ZSH).format(paths=paths, table="\n".join(lines))


def _commands(
    parser: argparse.ArgumentParser, name: str
) -> Iterator[tuple[str, tuple[list[str], list[str]]]]:
    """Every command with its options, and the words that may follow it."""
    options, choices = [], [*POSITIONAL.get(name, tuple)()]
    inner: dict[str, argparse.ArgumentParser] = {}
    for action in parser._actions:
        if action.option_strings and action.help != argparse.SUPPRESS:
            options += [option for option in action.option_strings if option.startswith("--")]
        elif not action.option_strings and action.choices is not None:
            choices += map(str, action.choices)
        if isinstance(action, argparse._SubParsersAction):
            inner = action.choices
    yield name, (options, choices)
    for word, part in inner.items():
        yield from _commands(part, f"{name} {word}")
