"""Which column, array or key of a file holds what: named by the user, else by the names people usually give."""

from collections.abc import Mapping, Sequence

from gpuload.errors import ArgumentError, SourceError
from gpuload.fields.registry import KINDS

Names = tuple[str, ...]

# What `--column` calls what a column can hold: the path of an image, the image, and the kinds of fields.
USUAL: dict[str, Names] = {
    "path": ("path", "file", "filename", "file_name", "filepath", "file_path", "image"),
    **{kind.role or kind.name: kind.usual_names for kind in KINDS.values() if kind.name != "raw"},
}
ROLES = tuple(USUAL)


def parse_columns(entries: Sequence[str]) -> dict[str, Names]:
    """What `--column ROLE=NAME[,NAME…]` says.

    Raises:
        ArgumentError: it says something else.
    """
    found: dict[str, Names] = {}
    for entry in entries:
        role, equals, names = entry.partition("=")
        if role not in ROLES or not equals or not names:
            raise ArgumentError(f"--column {entry}: write ROLE=NAME, with one of the roles {', '.join(ROLES)}")
        found[role] = tuple(name.strip() for name in names.split(","))
    return found


def find_column(
    where: str, present: Sequence[str], role: str, asked: Mapping[str, Names], option: str = "", usual: Names = ()
) -> Names:
    """The columns for a role, in their own spelling; none if nobody asked and none has a usual name.

    Raises:
        SourceError: one that was asked for is not there.
    """
    for name in asked.get(role, ()):
        if name not in present:
            option = option or f"--column {role}="
            raise SourceError(
                f"{where}: has no column {name!r}; its columns are {list(present)}. Give {option} one of them"
            )
    if role in asked:
        return asked[role]
    for name in usual or USUAL.get(role, ()):
        for column in present:
            if column.strip().lower() == name:
                return (column,)
    return ()
