"""Which column, array or key of a file holds what: named by the user, else by the names people usually give."""

from collections.abc import Mapping, Sequence

from gpuload.errors import ArgumentError, SourceError
from gpuload.fields.registry import KINDS
from gpuload.sources.splits import COLUMNS, SPLIT

Names = tuple[str, ...]

# fmt: off
_PATHS = (
    "path", "file", "filename", "file_name", "filepath", "file_path", "image", "image_path", "img_path", "image_file",
    "image_name", "img_name", "img", "image_id", "id", "name",
)
# fmt: on

# What `--column` calls what a column can hold: the path of an image, its split, and the kinds of fields.
USUAL: dict[str, Names] = {
    "path": _PATHS,
    **{kind.role or kind.name: kind.usual_names for kind in KINDS.values() if kind.name != "raw"},
    "captions": ("captions",),  # several for each image
    SPLIT: COLUMNS,
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
        if role in found:
            raise ArgumentError(
                f"--column {entry}: {role!r} is given twice. Write --column {role}={','.join(found[role])},{names} if "
                "both are meant, or leave one out"
            )
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
