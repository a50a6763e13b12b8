"""The numbers of pictures in lists, by which a picture that was lost from a tar is found.

Pictures of two lists belong together by their places, so closing up the numbers around a lost picture would pair all
that follow it wrongly.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

_LEAST_LISTS = 10  # by which a usual length is known
_USUAL_SHARE = 0.9  # of lists that have the usual length


class ListNumbers:
    """The numbers that the lists of pictures of a set have: from 0 on, as long as none was added.

    Lists of several lengths begin at one number and have no gaps. Where all have the same numbers, such as those of
    cameras, these may be any. Of pictures lost at the end of a list the numbers tell nothing.
    """

    def __init__(self) -> None:
        self._first_list: Sequence[int] = ()
        self._are_same = False
        self._least = 0

    @classmethod
    def of_all(cls, several: Iterable["ListNumbers"]) -> "ListNumbers":
        """Those of the lists that were added to each of several."""
        merged = cls()
        for numbers in several:
            merged.add(numbers._first_list)
            merged._are_same = merged._are_same and numbers._are_same
            merged._least = min(merged._least, numbers._least)
        return merged

    def add(self, numbers: Sequence[int]) -> None:
        """Adds those of a list, in ascending order; empty lists tell nothing."""
        if not numbers:
            return
        if not self._first_list:
            self._first_list = numbers
            self._least = numbers[0]
            self._are_same = len(set(numbers)) == len(numbers)
        self._are_same = self._are_same and numbers == self._first_list
        self._least = min(self._least, numbers[0])

    def fault(self, name: str, numbers: Sequence[int]) -> str:
        """What is wrong with a list of pictures; "" if nothing is.

        Args:
            name: Of the list.
            numbers: Its numbers, in ascending order.
        """
        if self._are_same:
            return ""
        for expected, number in enumerate(numbers, self._least):
            if number < expected:
                return f"has two pictures of number {number} in its list {name}"
            if number > expected:
                return (
                    f"lacks number {expected} in its list {name}, which has number {number}; lists begin at one "
                    f"number, here {self._least}, and have no gaps, unless all of the set have the same numbers"
                )
        return ""


class ListLengths:
    """How long the lists of pictures of samples are, by name.

    A list that has lost its last pictures is whole by its numbers. Where nearly all have one length and none is
    longer, the shorter ones may have lost some.
    """

    def __init__(self) -> None:
        self._counts: dict[str, Counter[int]] = {}
        self._first: dict[tuple[str, int], str] = {}

    def add(self, name: str, length: int, sample: str) -> None:
        """Adds a list.

        Args:
            name: Of the list.
            length: The number of its pictures.
            sample: The name of its sample.
        """
        self._counts.setdefault(name, Counter())[length] += 1
        self._first.setdefault((name, length), sample)

    def notes(self, names: Iterable[str]) -> list[str]:
        """A sentence for each of these lists of which some may have lost pictures."""
        notes = []
        for name in names:
            counts = self._counts.get(name, Counter())
            longest = max(counts, default=0)
            total = counts.total()
            shorter = total - counts[longest]
            is_usual = total >= _LEAST_LISTS and counts[longest] >= _USUAL_SHARE * total
            if shorter and is_usual:
                first = self._first[name, min(counts)]
                notes.append(
                    f"{shorter:,} of {total:,} lists {name} have fewer than {longest} pictures, such as that of "
                    f"{first!r}: whether they have lost their last ones, nothing tells"
                )
        return notes
