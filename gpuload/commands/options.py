"""Commands as dataclasses: their fields are options of the command line, and `run` does the work.

A field with `option(...)` as its metadata is an option, or a positional argument if it has no default. A field whose
type is a dataclass stands for all of that dataclass's fields in `texts`. Defaults live in the dataclass.
"""

import argparse
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, field, fields, is_dataclass
from types import MappingProxyType
from typing import Any, NoReturn, Protocol

from gpuload.checks import Rule, check_option
from gpuload.commands.terminal import complain

_NONE: Mapping[str, Any] = MappingProxyType({})


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
    read: Callable[[str], Any] | None = None,
    kind: type = str,
    **more: Any,
) -> dict[str, Any]:
    """Metadata of a field.

    text: the help. names: such as "-o"; by default the field's name. rule: checks the given value. read: converts the
    given text. kind: the type, if there is no default. more: arguments of `add_argument`.
    """
    return {"text": text, "metavar": metavar, "names": names, "rule": rule, "read": read, "kind": kind, "more": more}


def given(default: Any, *args: Any, **more: Any) -> Any:
    """A field with a default, and `option(*args, **more)`."""
    return field(default=default, metadata=option(*args, **more))


def place(*args: Any, **more: Any) -> Any:
    """A field without a default: a positional argument."""
    return field(metadata=option(*args, **more))


def group(texts: Mapping[str, Any]) -> Any:
    """A field for a dataclass, whose fields are options if `texts` describes them."""
    return field(kw_only=True, metadata={"texts": texts})


class Parser(argparse.ArgumentParser):
    """Escapes its errors, which may quote file names from a shell."""

    def error(self, message: str) -> NoReturn:
        complain(f"{self.format_usage().strip()} -- {message}")
        self.exit(2)


def add_options(parser: argparse.ArgumentParser, command: type, texts: Mapping[str, Any] = _NONE) -> None:
    """Adds an option for each described field of the dataclass."""
    for one, described in _described(command, texts):
        if is_dataclass(one.type):
            add_options(parser, one.type, described["texts"])  # type: ignore[arg-type]
            continue
        if one.default is MISSING:
            parser.add_argument(one.name, metavar=described["metavar"], help=described["text"], **described["more"])
            continue
        usual = list(one.default) if isinstance(one.default, tuple) else one.default  # argparse may append to it
        more: dict[str, Any] = {"dest": one.name, "default": usual, "help": described["text"]}
        if isinstance(one.default, bool):
            more["action"] = "store_false" if one.default else "store_true"
        else:
            is_text = one.default in (None, ()) or described["read"]
            kind = described["kind"] if is_text else type(one.default)
            more |= {"metavar": described["metavar"], "type": kind, **described["more"]}
        names = described["names"] or [_flag(one)]
        if names == (one.name,):  # positional and optional
            del more["dest"]
        parser.add_argument(*names, **more)


def make(command: type, values: Mapping[str, Any], texts: Mapping[str, Any] = _NONE) -> Any:
    """Makes the dataclass from the parsed values.

    Raises:
        ArgumentError: a value is not what its rule expects.
    """
    found = {}
    for one, described in _described(command, texts):
        if is_dataclass(one.type):
            found[one.name] = make(one.type, values, described["texts"])  # type: ignore[arg-type]
            continue
        value = values[one.name]
        if described["rule"] is not None and value is not None:
            check_option((described["names"] or [_flag(one)])[-1], value, described["rule"])
        if described["read"] is not None and isinstance(value, str):
            value = described["read"](value)
        found[one.name] = value
    return command(**found)


def _described(command: type, texts: Mapping[str, Any]) -> Iterator[tuple[Field[Any], Mapping[str, Any]]]:
    for one in fields(command):
        if described := texts.get(one.name) or one.metadata or ({"texts": texts} if is_dataclass(one.type) else {}):
            yield one, described


def _flag(one: Field[Any]) -> str:
    return f"--{'no-' if one.default is True else ''}{one.name.replace('_', '-')}"
