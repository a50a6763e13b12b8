"""Commands as dataclasses: their fields are options of the command line, and `run` does the work.

A field with `option(...)` as its metadata is an option, or a positional argument if it has no default. A field whose
type is a dataclass stands for all of that dataclass's fields in `texts`. Defaults live in the dataclass.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, field, fields, is_dataclass
from typing import Any, NoReturn, Protocol

from gpuload.checks import Rule, check_option, nearest
from gpuload.commands.terminal import complain
from gpuload.errors import ArgumentError


class Command(Protocol):
    """epilog: the exit codes. The docstring describes the command."""

    epilog: str

    def run(self) -> int:
        """Runs the command and returns its exit code."""


def option(
    text: str,
    metavar: str | None = None,
    *names: str,
    rule: Rule[Any] | None = None,
    **more: Any,
) -> dict[str, Any]:
    """Metadata of a dataclass field that is an option of a command.

    Args:
        text: The help.
        metavar: What the help calls the value; None: by its type.
        rule: Checks the given value.
        *names: Such as "-o"; by default the field's name.
        **more: Arguments of `add_argument`; the type is by default the default's.
    """
    return {
        "rule": rule,
        "names": names,
        "more": {"help": text, "metavar": metavar, **more},
    }


def given(default: Any, *args: Any, **more: Any) -> Any:
    """A field with a default, and `option(*args, **more)`."""
    return field(default=default, metadata=option(*args, **more))


def place(*args: Any, **more: Any) -> Any:
    """A field without a default: a positional argument."""
    return field(metadata=option(*args, **more))


def group(texts: Mapping[str, Any]) -> Any:
    """A field for a dataclass whose own fields are options.

    Args:
        texts: Help, or metadata as of `option`, by the name of the field; those without one are no options.
    """
    return field(kw_only=True, metadata={"texts": texts})


class Parser(argparse.ArgumentParser):
    """Escapes its errors, which may quote file names from a shell."""

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse's, but an unknown option is named with the one that was meant."""
        values, unknown = self.parse_known_args(args, namespace)
        if unknown:
            similar = nearest(unknown[0].partition("=")[0], self._option_string_actions)
            self.error(f"unrecognized arguments: {' '.join(unknown)}{_meant(similar)}")
        return values

    def error(self, message: str) -> NoReturn:
        complain(f"{' '.join(self.format_usage().split())} -- {message}")
        self.exit(2)


def _meant(word: str | None) -> str:
    return "" if word is None else f". Did you mean {word}?"


def parser_for(command: type[Command], prog: str) -> Parser:
    """The parser of a command's arguments."""
    parser = Parser(prog=prog, description=command.__doc__, epilog=command.epilog)
    for option, details in _options(command):
        more = dict(details["more"])
        if option.default is MISSING:
            parser.add_argument(option.name, **more)
            continue
        names = details["names"] or [_flag(option)]
        more["default"] = (
            list(option.default)
            if isinstance(option.default, tuple)
            else option.default
        )  # argparse appends to it
        if names[0].startswith("-"):
            more["dest"] = option.name
        if isinstance(option.default, bool):
            more["action"] = "store_false" if option.default else "store_true"
            del more["metavar"]
        elif option.default not in (None, ()):
            more.setdefault("type", type(option.default))
        parser.add_argument(*names, **more)
    return parser


def parse(command: type[Command], prog: str, argv: Sequence[str]) -> Command:
    """The command with its options.

    Raises:
        ArgumentError: a value is not what its rule expects. SystemExit: the arguments have another form.
    """
    values = vars(parser_for(command, prog).parse_args(argv))
    for option, details in _options(command):
        name = (
            details["more"]["metavar"]
            if option.default is MISSING
            else (details["names"] or [_flag(option)])[-1]
        )
        if values[option.name] in ("", [""]):  # an unset variable of a shell
            raise ArgumentError(f"{name}: is empty, expected a value")
        if details["rule"] is not None and values[option.name] is not None:
            check_option(name, values[option.name], details["rule"])
    filled: Command = _make(command, values)
    return filled


def _make(kind: Any, values: Mapping[str, Any]) -> Any:
    nested = {
        option.name: _make(option.type, values)
        for option in fields(kind)
        if is_dataclass(option.type)
    }
    return kind(
        **{
            option.name: values[option.name]
            for option in fields(kind)
            if option.name in values
        },
        **nested,
    )


def _options(
    kind: Any, texts: Mapping[str, Any] | None = None
) -> Iterator[tuple[Field[Any], Mapping[str, Any]]]:
    """The fields that are options, and their metadata."""
    for option in fields(kind):
        if is_dataclass(option.type):
            yield from _options(option.type, option.metadata.get("texts", texts))
        elif about := (option.metadata if texts is None else texts.get(option.name)):
            yield option, about


def _flag(one: Field[Any]) -> str:
    return f"--{'no-' if one.default is True else ''}{one.name.replace('_', '-')}"
