"""The argument parser of every command: one-line errors that suggest the closest valid word, and help with examples."""

from __future__ import annotations

import argparse
import difflib
import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

WIDTH = 80
"""Columns of help."""


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line. The result names the parser that read it as `parser`."""

    def __init__(self, **settings: Any) -> None:
        settings.setdefault("formatter_class", _Help)
        super().__init__(**settings)
        self.set_defaults(parser=self)
        self._negative_number_matcher = re.compile(
            r"-\.?\d"
        )  # -5mbit is a wrong value, not an unknown option
        self._replacements: dict[str, str] = {}

    def suggest_instead(self, option: str, instead: str) -> None:
        """What to write for an option that other commands have and this one has not."""
        self._replacements[option] = instead

    def add_examples(self, examples: Iterable[str]) -> None:
        """Command lines shown at the end of the help."""
        listed = "\n".join(f"  {example}" for example in examples)
        self.epilog = f"examples:\n{listed}" + (f"\n\n{self.epilog}" if self.epilog else "")

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message.rstrip('.')}; see `{self.prog} --help`.\n")

    def reject_unknown_option(self, words: Sequence[str]) -> None:
        """End with an error if an option stands where a command belongs, and is none of this parser."""
        name = words[0].split("=")[0] if words else ""
        if name.startswith("-") and not any(
            option.startswith(name) for action in self._actions for option in action.option_strings
        ):
            self.error(self.unknown("option", words[0]))

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        if args is not None:
            self._reject_duplicates(args)
        return super().parse_known_args(args, namespace)

    def _reject_duplicates(self, words: Sequence[str]) -> None:
        """An option that takes a list may be given once: of two lists, argparse would silently drop the first.

        Of an option with one value the last counts, as in other commands, so that scripts can set defaults.
        """
        options = {
            name: action
            for action in self._actions
            if isinstance(action.nargs, str) and not getattr(action, "single", False)
            for name in action.option_strings
        }
        given: set[str] = set()
        for word in itertools.takewhile(lambda word: word != "--", words):
            name = word.split("=")[0]
            action = options.get(name)
            if action is None:
                continue
            if action.dest in given:
                self.error(f"{name} is given twice; give it once, with all its values")
            given.add(action.dest)

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        parsed, rest = self.parse_known_args(args, namespace)
        if rest:
            leaf: Parser = parsed.parser
            leaf.error(leaf.unknown("option" if rest[0].startswith("-") else "argument", rest[0]))
        return parsed

    def unknown(self, kind: str, word: str) -> str:
        """The message for a word that this parser does not know."""
        if instead := self._replacements.get(word.split("=")[0]):
            return f"unknown {kind} {word!r} (write {instead})"
        options = [name for action in self._actions for name in action.option_strings]
        return f"unknown {kind} {word!r}{_closest(word.split('=')[0], options)}"

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            known = [str(choice) for choice in action.choices]
            what = action.metavar or "/".join(action.option_strings) or action.dest
            raise argparse.ArgumentError(
                None, f"unknown {what} {value!r}{_closest(str(value), known)}; known: {', '.join(known)}"
            )


def _closest(word: str, known: Sequence[str]) -> str:
    bare = {name.lstrip("-"): name for name in known}  # dashes, which all options share, make none alike
    near = difflib.get_close_matches(word.lstrip("-"), bare, n=1, cutoff=0.65)
    return f" (did you mean {bare[near[0]]!r}?)" if near else ""


class _Help(argparse.RawDescriptionHelpFormatter):
    """Keeps the lines of examples, and wraps paragraphs at a fixed width."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=26, width=WIDTH)

    def add_argument(self, action: argparse.Action) -> None:
        super().add_argument(action)
        # argparse forgets that commands are indented below their heading, and breaks the line after the longest.
        if names := [part.dest for part in self._iter_indented_subactions(action)]:
            needed = max(map(len, names)) + self._current_indent + self._indent_increment
            self._action_max_length = max(self._action_max_length, needed)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        paragraphs = text.split("\n\n")
        wrapped = argparse.HelpFormatter._fill_text
        return "\n\n".join(
            part if part.startswith("examples:") else wrapped(self, part, width, indent)
            for part in paragraphs
        )


def whole(least: int = 1, most: int | None = None) -> Callable[[str], int]:
    """The type of an option that takes a whole number.

    >>> whole()("3")
    3
    """

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least:
            raise argparse.ArgumentTypeError(
                f"{text!r} must be a whole number of at least {least}, such as {max(least, 2)}"
            )
        if most is not None and value > most:
            raise argparse.ArgumentTypeError(f"{text!r} must be at most {most}")
        return value

    return read


def positive(text: str) -> float:
    """The type of an option that takes a positive number.

    >>> positive("0.5")
    0.5
    """
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} must be a positive number, such as 1.5")
    return value


def path(text: str) -> Path:
    """The type of an option that takes a file or folder; an empty text, as of an unset variable, is an error.

    >>> path("runs").name
    'runs'
    """
    if not text.strip():
        raise argparse.ArgumentTypeError(f"{text!r} is not a path; name a file or folder, such as runs/mine")
    return Path(text)


class Listed(argparse.Action):
    """An option that takes values separated by commas, spaces or both, without duplicates. `item` reads one of them.

    With `single`, more than one value is an error, and the value itself is stored.
    """

    def __init__(
        self, *names: Any, item: Callable[[str], Any] = str, single: bool = False, **settings: Any
    ) -> None:
        settings["nargs"] = "+"
        super().__init__(*names, **settings)
        self.item, self.single = item, single

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: Any = None
    ) -> None:
        words = [word for value in values for word in value.replace(",", " ").split()]
        try:
            found = list(dict.fromkeys(self.item(word) for word in words))
        except argparse.ArgumentTypeError as error:
            raise argparse.ArgumentError(self, str(error)) from None
        if not found:
            raise argparse.ArgumentError(self, f"{' '.join(values)!r} is an empty list; name at least one")
        if self.single and len(found) > 1:
            raise argparse.ArgumentError(self, f"{' '.join(values)!r}: this command takes one value")
        setattr(namespace, self.dest, found[0] if self.single else found)
