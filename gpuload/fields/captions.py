"""Texts of samples: captions, one of several drawn and tokenized while reading, and JSON documents."""

import json
import zlib
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Annotated, Any, ClassVar

import numpy as np
import pyarrow as pa

from gpuload.checks import (
    FLAG,
    PROBABILITY,
    Rule,
    as_text,
    function,
    optional,
    settings,
    shown,
)
from gpuload.draws import CAPTION, random_bits, uniform
from gpuload.errors import ArgumentError, DecodeError
from gpuload.fields.arrow_arrays import array_of
from gpuload.fields.field import Field
from gpuload.fields.kind import NAME, FieldSpec, Kind, Origin, Parsed, read_each
from gpuload.fields.rows import BoundField, Rows
from gpuload.machine.untrusted import parse_json
from gpuload.types import F64, ClassNames

Tokenizer = Callable[[list[str]], Any]

_BYTE_ORDER_MARK = "\ufeff"  # editors put it before a text, of which it is no part
_DRAWS = 2  # of each sample: which caption, and whether none
_WHICH = 0
_NONE = 1


@settings
class Captions(FieldSpec):
    """One caption for each sample, as a list of N str, or what a tokenizer makes of it.

    Attributes:
        name: Of a field of kind "caption", one text for each sample, or of kind "json", a text or a list of texts: of
            these one is drawn each time, by (seed, epoch, sample).
        dropout: Probability that the text is `empty` instead, for classifier-free guidance; drawn in the same way.
        lines: Each line of a text of kind "caption" is a caption of its own; empty lines are none.
        tokenizer: Called with the list of N texts, in the thread that reads batches ahead of the decoder. It returns an
            array or a tensor of N rows, a list of N, or a dict of these, such as transformers' tokenizers do; arrays
            are handed over on the batch's device.
        empty: The text that stands for a caption that is left out.

    Raises:
        ArgumentError: dropout outside of 0..1. When bound: the field is of another kind. While iterating: the tokenizer
            fails, or returns something else.
        DecodeError: while iterating, where a document is no text and no list of texts, or an empty one.
    """

    name: Annotated[str, NAME] = "caption"
    dropout: Annotated[float, PROBABILITY] = 0.0
    lines: Annotated[bool, FLAG] = False
    tokenizer: Annotated[
        Tokenizer | None, optional(function("a function of a list of str"))
    ] = None
    empty: Annotated[str, Rule("a text", as_text)] = ""

    kind = "caption"
    other_kinds = ("json",)


class BoundJson(BoundField):
    """A list of N documents, parsed by `json.loads`.

    Raises DecodeError for a text that is not JSON.
    """

    def values(self, rows: Rows) -> list[Any]:
        return [
            self._parsed(rows, row, text)
            for row, text in enumerate(rows.columns[self.name].to_pylist())
        ]

    def _parsed(self, rows: Rows, row: int, text: str) -> Any:
        try:
            return parse_json(text)
        except ValueError as error:
            raise self._refuse(rows, row, f"is not a JSON document ({error})") from None

    def _refuse(self, rows: Rows, row: int, what: str) -> DecodeError:
        return DecodeError(
            f"{rows.sample_name(self.datasets, row)}: its field {self.name!r} {what}. Correct it and pack again, or "
            "leave the sample out with gpuload.Dataset(exclude=[key])"
        )


class BoundCaptions(BoundJson):
    """The texts of `Captions`, or their tokens."""

    spec: Captions

    def prepare(self) -> None:
        self._is_json = self.field.kind == "json"
        self._word = zlib.crc32(self.name.encode())  # so that fields draw independently

    def values(self, rows: Rows) -> Any:
        texts = rows.columns[self.name].to_pylist()
        if self._is_json or self.spec.lines:
            chosen = self._draw(rows, _WHICH)
            captions_of_rows = [
                self._several(rows, row, text) for row, text in enumerate(texts)
            ]
            texts = [
                captions[int(chosen[row] * len(captions))]
                for row, captions in enumerate(captions_of_rows)
            ]
        if self.spec.dropout:
            for row in np.flatnonzero(
                self._draw(rows, _NONE) < self.spec.dropout
            ).tolist():
                texts[row] = self.spec.empty
        return (
            texts
            if self.spec.tokenizer is None
            else self._tokenize(self.spec.tokenizer, texts)
        )

    def _draw(self, rows: Rows, number: int) -> F64:
        assert rows.keys is not None
        keys = random_bits(rows.keys, np.full(len(rows), CAPTION, np.uint64))
        keys = random_bits(keys, np.full(len(rows), self._word, np.uint64))
        return uniform(keys, rows.columns["index"] * _DRAWS + number)

    def _several(self, rows: Rows, row: int, text: str) -> list[str]:
        """The captions that a sample has."""
        if not self._is_json:
            return [line.strip() for line in text.splitlines() if line.strip()] or [
                text
            ]
        parsed = self._parsed(rows, row, text)
        texts = [parsed] if isinstance(parsed, str) else parsed
        if (
            not isinstance(texts, list)
            or not texts
            or not all(isinstance(entry, str) for entry in texts)
        ):
            raise self._refuse(rows, row, "is no text and no list of texts")
        return texts

    def _tokenize(self, tokenizer: Tokenizer, texts: list[str]) -> Any:
        try:
            tokens = tokenizer(texts or [self.spec.empty])
        except Exception as error:  # whatever a user's tokenizer raises
            raise ArgumentError(
                f"{self.spec}: its tokenizer raised {type(error).__name__} for {len(texts):,} texts: {error}"
            ) from error
        if isinstance(tokens, Mapping):
            return {
                str(name): self._checked(part, len(texts))
                for name, part in tokens.items()
            }
        return self._checked(tokens, len(texts))

    def _checked(self, tokens: Any, count: int) -> Any:
        """An array or a list of `count` rows."""
        if type(tokens).__module__ == "torch":
            tokens = tokens.detach().cpu().numpy()
        is_array = (
            isinstance(tokens, np.ndarray)
            and tokens.ndim > 0
            and tokens.dtype.kind in "biuf"
        )
        if not (is_array or isinstance(tokens, list | tuple)) or len(tokens) != max(
            count, 1
        ):
            raise ArgumentError(
                f"{self.spec}: its tokenizer returned {type(tokens).__name__} {shown(tokens)} for {count:,} "
                "texts, expected an array of numbers or a list with as many rows, or a dict of these"
            )
        return tokens[:count] if is_array else list(tokens[:count])


class CaptionKind(Kind):
    """A text, stored in UTF-8 in a `.txt` member."""

    name = "caption"
    specs: ClassVar[tuple[type[FieldSpec], ...]] = (Captions,)
    bound = BoundCaptions
    plain: ClassVar[type[BoundField] | None] = BoundField
    usual_names: ClassVar[tuple[str, ...]] = ("caption", "text")
    in_tables = True
    members: ClassVar[tuple[str, ...]] = ("txt",)
    expected: ClassVar[str] = "a text"  # in messages

    def columns(self, field: Field) -> dict[str, pa.DataType]:
        return {field.name: pa.large_string()}

    def claims(self, value: Any) -> bool:
        return isinstance(value, str)

    def parse(
        self,
        where: Origin,
        name: str,
        values: Sequence[Any],
        classes: ClassNames,
        detail: str,
    ) -> Parsed:
        texts = read_each(where, name, values, self._text, self.expected)
        member = self.members[0] if name == self.name else f"{name}.{self.members[0]}"
        return Field(name, self.name, member), [array_of(texts, pa.large_string())]

    def _text(self, value: Any) -> str:
        if value is None or isinstance(value, list):
            raise ValueError(
                "it is missing, or a list; several of each image are for --column captions="
            )
        return str(value).removeprefix(_BYTE_ORDER_MARK)

    def dump(self, field: Field, values: Mapping[str, Any]) -> bytes:
        return str(values[field.name]).encode()

    def load(self, field: Field, content: bytes) -> dict[str, Any]:
        return {field.name: content.decode()}

    def caption(self, field: Field, spec: Any, value: Any, classes: ClassNames) -> str:
        return str(value)


class JsonKind(CaptionKind):
    """A JSON document, stored as the text that the source gave."""

    name = "json"
    specs = ()
    plain = BoundJson
    usual_names = ()
    in_tables = False
    members = ("json",)
    expected = "a JSON document"

    def hub_feature(
        self, field: Field, classes: ClassNames, dimensions: Set[int]
    ) -> dict[str, Any]:
        return {"dtype": "json"}

    def claims(self, value: Any) -> bool:
        return True  # what no other kind claims

    def _text(self, value: Any) -> str:
        """Any value that JSON can represent; a str is taken to be JSON text already.

        Raises:
            ValueError: it is not.
        """
        if not isinstance(value, str):
            return json.dumps(value, ensure_ascii=False)
        text = value.removeprefix(_BYTE_ORDER_MARK)
        parse_json(text)
        return text

    def look(self, field: Field, row: Mapping[str, Any], read: Any) -> dict[str, Any]:
        return {field.name: parse_json(row[field.name])}

    def caption(self, field: Field, spec: Any, value: Any, classes: ClassNames) -> str:
        return str(value) if isinstance(spec, Captions) else ""
