"""Numbers of things in messages."""


def counted(number: int, noun: str) -> str:
    """The number with its noun, in the singular where there is one.

    >>> counted(1, "shard"), counted(1200, "image")
    ('1 shard', '1,200 images')
    """
    return f"{number:,} {noun}{'' if number == 1 else 'es' if noun.endswith('ch') else 's'}"
