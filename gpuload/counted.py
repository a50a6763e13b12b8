"""Numbers of things in messages."""


def counted(number: int, noun: str, plural: str = "") -> str:
    """The number with its noun, in the singular where there is one.

    plural: where it is not the noun with an s, or where a verb follows.

    >>> counted(1, "shard"), counted(1200, "image"), counted(1, "row has", "rows have")
    ('1 shard', '1,200 images', '1 row has')
    """
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"
