"""The pictures of each sample, found in one container by patterns of their files' names."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from gpuload.errors import ArgumentError, SourceError, some_of
from gpuload.fields.pictures import PICTURE_SUFFIXES, PictureKind
from gpuload.sources.files import Files, Findings, Ref
from gpuload.sources.listing import SPLIT
from gpuload.sources.source import FilesSource, Row, SourceOptions
from gpuload.store.url import URL

_EXTENSIONS = frozenset(suffix.removeprefix(".") for suffix in PICTURE_SUFFIXES)
_WILDCARD = re.compile(r"\*\*/|\*|\{label\}|\{split\}|\{[+-]\d{1,9}\}")
_FOLDERS = "**/"
_LABEL = "{label}"
_SPLIT = "{split}"
_ADVICE = (
    "A pattern is a path below the source with *, **/, {label}, {split} or {+1}, such "
    "as 'image_2/*_10.png'"
)
_FRAME = re.compile(r"\{[+-]")

Key = tuple[str, ...]


def are_patterns(pictures: Mapping[str, Any]) -> bool:
    """Whether pictures are given by patterns of files, and not by folders.

    Args:
        pictures: Texts, paths or URLs by the names of the pictures.

    Raises:
        ArgumentError: some have wildcards, and others have none.
    """
    patterns = [
        name
        for name, text in pictures.items()
        if isinstance(text, str) and ("*" in text or "{" in text)
    ]
    if patterns and len(patterns) < len(pictures):
        folders = [name for name in pictures if name not in patterns]
        raise ArgumentError(
            f"pictures: {some_of(patterns)} are patterns of files in the source, and "
            f"{some_of(folders)} folders. Give patterns for all, or folders for all"
        )
    return bool(patterns)


class Pattern:
    """Which files are the pictures of one name.

    `*` stands for any characters of a name, `**/` for any folders, `{label}` and
    `{split}` for a name that is the class or the split, and `{+1}` for a number that is
    that of the image plus 1. Files belong together if their wildcards stand for the
    same.

    Args:
        name: Of the picture.
        text: The pattern, a path below the root of the container.

    Raises:
        ArgumentError: It has no wildcard, or braces that are none.
    """

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.text = text.removeprefix("./")
        self.wildcards = _WILDCARD.findall(self.text)
        literals = _WILDCARD.split(self.text)
        if not self.wildcards or re.search("[{}]", "".join(literals)):
            raise ArgumentError(f"picture {name!r}: got {text!r}. {_ADVICE}")
        self.letters = sum(map(len, literals))
        groups = [_group(wildcard) for wildcard in self.wildcards]
        parts = [re.escape(literals[0])]
        for group, literal in zip(groups, literals[1:], strict=True):
            parts += [group, re.escape(literal)]
        self._expression = re.compile("".join(parts))

    @property
    def frame_places(self) -> set[int]:
        """Which of its wildcards are numbers of frames."""
        return {
            place
            for place, wildcard in enumerate(self.wildcards)
            if _FRAME.match(wildcard)
        }

    def read(self, file: str) -> list[str] | None:
        """What the wildcards stand for in a file's name; None if it does not fit."""
        fitted = self._expression.fullmatch(file)
        return None if fitted is None else list(fitted.groups())

    def key(self, parts: Sequence[str], frame_places: set[int]) -> Key:
        """By which a file belongs to an image: that of the image itself.

        Args:
            parts: What the wildcards stand for.
            frame_places: Where any pattern has the number of a frame.
        """
        words = list(parts)
        for place in frame_places:
            if words[place].isdecimal():
                wildcard = self.wildcards[place]
                step = int(wildcard[1:-1]) if _FRAME.match(wildcard) else 0
                words[place] = str(int(words[place]) - step)
        return tuple(words)


def _group(wildcard: str) -> str:
    """The regular expression of a wildcard."""
    if wildcard == _FOLDERS:
        return "((?:[^/]+/)*)"
    return r"(\d+)" if _FRAME.match(wildcard) else "([^/]*)"


@dataclass(frozen=True)
class MatchedOptions(SourceOptions):
    """The options of pictures by patterns.

    Args:
        pictures: The pattern of each picture by its name; the first is the image.
    """

    pictures: Mapping[str, str] = field(default_factory=dict)


class MatchedSource(FilesSource):
    """Samples of several pictures, as benchmarks of vision have them on disk.

    Args:
        root: A folder, a zip archive or a URL.
        options: Of `MatchedOptions`, by name.

    Raises:
        ArgumentError: There are fewer than two patterns, a text is none, or they differ
            in their number of wildcards.
    """

    Options = MatchedOptions
    options: MatchedOptions
    picture_kind: ClassVar[str] = PictureKind.name  # of all but the image
    advice = "Give the folder in which the patterns of the pictures begin"

    def __init__(self, root: str | Path | URL | Files, **options: Any) -> None:
        super().__init__(root, **options)
        pictures = self.options.pictures
        self._patterns = [Pattern(name, text) for name, text in pictures.items()]
        if len(self._patterns) < 2:
            raise ArgumentError(
                f"pictures: got one pattern, {some_of(list(pictures.values()))}, and the "
                "image of the sample needs one, too. Give it first, as image='*.jpg'"
            )
        first = self._patterns[0]
        if first.frame_places:
            raise ArgumentError(
                f"picture {first.name!r}: is the image, from whose number those of other "
                f"frames are counted; got {first.text!r}. Write * in place of the number"
            )
        for pattern in self._patterns:
            if len(pattern.wildcards) != len(first.wildcards):
                raise ArgumentError(
                    f"picture {pattern.name!r}: {pattern.text!r} has "
                    f"{len(pattern.wildcards)} wildcards, and {first.text!r} has "
                    f"{len(first.wildcards)}. What they stand for is compared, one by "
                    "one: give both as many"
                )
        self._frame_places = set[int]().union(
            *(pattern.frame_places for pattern in self._patterns)
        )

    def rows(self, findings: Findings) -> Iterator[Row]:
        """As `Source.rows`; an image that lacks a picture is rejected."""
        first = self._patterns[0]
        findings.kinds |= {
            pattern.name: self.picture_kind
            for pattern in self._patterns
            if pattern.name != "image"
        }
        findings.strict = True
        images, others = self.match(findings)
        for key, image in images.items():
            pictures = {
                pattern.name: others[pattern.name].get(key)
                for pattern in self._patterns[1:]
            }
            lacking = [name for name, file in pictures.items() if file is None]
            if lacking:
                findings.reject(image.name, f"lacks its picture {', '.join(lacking)}")
                continue
            words = dict(zip(first.wildcards, key, strict=True))
            sample: dict[str, Any] = {first.name: image}
            if _LABEL in words:
                sample["label"] = words[_LABEL]
            if _SPLIT in words and self.options.own_splits:
                sample[SPLIT] = words[_SPLIT]
            yield sample | pictures

    def match(
        self, findings: Findings
    ) -> tuple[dict[Key, Ref], dict[str, dict[Key, Ref]]]:
        """The images, and the files of each further picture, by their keys.

        Args:
            findings: Gets notes on files that fit no pattern.

        Raises:
            SourceError: No file fits a pattern, or two of one pattern have one key.
        """
        matched: dict[str, dict[Key, Ref]]
        matched = {pattern.name: {} for pattern in self._patterns}
        unmatched = list[str]()
        for file in self.files.walk(_EXTENSIONS, findings):
            fitting = self._fitting(file.name)
            if not fitting:
                unmatched.append(file.name)
            for pattern, key in fitting:
                other = matched[pattern.name].setdefault(key, file)
                if other is not file:
                    raise SourceError(
                        f"{self.title}: {other.name!r} and {file.name!r} are both the "
                        f"picture {pattern.name!r} of one sample, by {pattern.text!r}. "
                        "Give a pattern that fits one of them"
                    )
        for pattern in self._patterns:
            if not matched[pattern.name]:
                such = f", such as {some_of(unmatched, 2)}" if unmatched else ""
                raise SourceError(
                    f"{self.title}: no file fits {pattern.text!r}, the pattern of the "
                    f"pictures {pattern.name!r}{such}. {_ADVICE}"
                )
        if unmatched:
            folders = Counter(file.rpartition("/")[0] for file in unmatched)
            findings.notes.append(
                f"{len(unmatched):,} files that fit no pattern, in "
                f"{some_of(sorted(folders))}"
            )
        return matched.pop(self._patterns[0].name), matched

    def _fitting(self, file: str) -> list[tuple[Pattern, Key]]:
        """The patterns that a file fits, and its key by each.

        '1.depth.png' fits '*.png' and '*.depth.png': of such patterns the one with the
        most letters counts.
        """
        # A folder around everything may be left out, as in names, or be there.
        full_name = f"{self.files.around.rstrip('/')}/{file}"
        read = [
            (pattern, pattern.read(file) or pattern.read(full_name))
            for pattern in self._patterns
        ]
        letters = max(
            (pattern.letters for pattern, parts in read if parts is not None), default=0
        )
        return [
            (pattern, pattern.key(parts, self._frame_places))
            for pattern, parts in read
            if parts is not None and pattern.letters == letters
        ]
