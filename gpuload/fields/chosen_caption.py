"""One caption of each sample, out of several, for training: drawn, left out at times, and tokenized while reading."""

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuload.checks import FLAG, PROBABILITY, Rule, as_text, check_fields, function, optional
from gpuload.draws import CAPTION, random_bits, uniform
from gpuload.errors import ArgumentError, DecodeError
from gpuload.fields.kind import NAME, FieldSpec, describe
from gpuload.fields.rows import DatasetView, Rows
from gpuload.headers.json_text import parse_json
from gpuload.types import F64

Tokenizer = Callable[[list[str]], Any]

_DRAWS = 2  # of each sample: which caption, and whether none
_WHICH, _NONE = 0, 1


@dataclass(frozen=True)
class Captions(FieldSpec):
    """One caption for each sample, as a list of N str, or what a tokenizer makes of it.

    name: of a field of kind "caption", one text for each sample, or of kind "json", a text or a list of texts: of these
        one is drawn each time, by (seed, epoch, sample).
    dropout: probability that the text is `empty` instead, for classifier-free guidance; drawn in the same way.
    lines: each line of a text of kind "caption" is a caption of its own; empty lines are none.
    tokenizer: called with the list of N texts, in the thread that reads batches ahead of the decoder. It returns an
        array or a tensor of N rows, a list of N, or a dict of these, such as transformers' tokenizers do; arrays are
        handed over on the batch's device.
    empty: the text that stands for a caption that is left out.

    Raises:
        ArgumentError: dropout outside of 0..1. When bound: the field is of another kind. While iterating: the tokenizer
            fails, or returns something else.
        DecodeError: while iterating, where a document is no text and no list of texts, or an empty one.
    """

    name: str = "caption"
    dropout: float = 0.0
    lines: bool = False
    tokenizer: Tokenizer | None = None
    empty: str = ""

    kind = "caption"
    other_kinds = ("json",)

    def __post_init__(self) -> None:
        check_fields(
            self,
            name=NAME,
            dropout=PROBABILITY,
            lines=FLAG,
            tokenizer=optional(function("a function of a list of str")),
            empty=Rule("a text", as_text),
        )


class BoundCaptions:
    """The texts of `Captions`, or their tokens; computed while reading (`ahead`).

    is_json: the field holds JSON documents.
    """

    members: tuple[str, ...] = ()
    ahead = True

    def __init__(self, spec: Captions, datasets: Sequence[DatasetView], *, is_json: bool) -> None:
        if is_json and spec.lines:
            raise ArgumentError(
                f"{describe(spec)}: lines=True is for texts of kind 'caption', {spec.name!r} in {datasets[0].folder} "
                "has kind 'json', which may hold a list. Leave lines out"
            )
        self.name, self.columns, self._spec = spec.name, (spec.name,), spec
        self._datasets, self._is_json = tuple(datasets), is_json
        self._word = zlib.crc32(spec.name.encode())  # so that two fields draw independently

    def values(self, rows: Rows) -> Any:
        texts = rows.columns[self.name].to_pylist()
        if self._is_json or self._spec.lines:
            chosen = self._draw(rows, _WHICH)
            texts = [self._choose(rows, row, text, float(chosen[row])) for row, text in enumerate(texts)]
        if self._spec.dropout:
            for row in np.flatnonzero(self._draw(rows, _NONE) < self._spec.dropout).tolist():
                texts[row] = self._spec.empty
        return texts if self._spec.tokenizer is None else self._tokenize(self._spec.tokenizer, texts)

    def _draw(self, rows: Rows, number: int) -> F64:
        assert rows.keys is not None
        keys = random_bits(rows.keys, np.full(len(rows), CAPTION, np.uint64))
        keys = random_bits(keys, np.full(len(rows), self._word, np.uint64))
        return uniform(keys, rows.columns["index"] * _DRAWS + number)

    def _choose(self, rows: Rows, row: int, text: str, chosen: float) -> str:
        if not self._is_json:
            several = [line.strip() for line in text.splitlines() if line.strip()] or [text]
            return several[int(chosen * len(several))]
        try:
            found = parse_json(text)
        except ValueError as error:
            raise self._refuse(rows, row, f"is not a JSON document ({error})") from None
        if isinstance(found, str):
            return found
        if not isinstance(found, list) or not found or not all(isinstance(entry, str) for entry in found):
            raise self._refuse(rows, row, "is no text and no list of texts")
        return str(found[int(chosen * len(found))])

    def _refuse(self, rows: Rows, row: int, what: str) -> DecodeError:
        return DecodeError(
            f"{rows.sample_name(self._datasets, row)}: its field {self.name!r} {what}. Correct it and pack again, or "
            "leave the sample out with exclude="
        )

    def _tokenize(self, tokenizer: Tokenizer, texts: list[str]) -> Any:
        try:
            made = tokenizer(texts or [self._spec.empty])
        except Exception as error:
            raise ArgumentError(
                f"{describe(self._spec)}: its tokenizer raised {type(error).__name__} for {len(texts):,} texts: {error}"
            ) from error
        if isinstance(made, Mapping):
            return {str(name): self._checked(part, len(texts)) for name, part in made.items()}
        return self._checked(made, len(texts))

    def _checked(self, made: Any, count: int) -> Any:
        """An array or a list of `count` rows."""
        if type(made).__module__ == "torch":
            made = made.detach().cpu().numpy()
        is_array = isinstance(made, np.ndarray) and made.ndim > 0 and made.dtype.kind in "biuf"
        if not (is_array or isinstance(made, list | tuple)) or len(made) != max(count, 1):
            what = type(made).__name__
            if isinstance(made, np.ndarray):
                what = f"an array of {made.dtype}, shape {made.shape}"
            elif isinstance(made, list | tuple):
                what += f" of {len(made):,}"
            raise ArgumentError(
                f"{describe(self._spec)}: its tokenizer returned {what} for {count:,} texts, expected an array "
                "of numbers or a list with as many rows, or a dict of these"
            )
        return made[:count] if is_array else list(made[:count])
