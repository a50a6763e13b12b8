"""Which column, array or key of a file holds what: named by the user, else by the names people usually give."""

from collections.abc import Mapping, Sequence

from gpuload.errors import ArgumentError, SourceError

Names = tuple[str, ...]

ROLES = ("path", "image", "label", "target", "labels", "caption", "boxes", "mask", "array")
USUAL: dict[str, Names] = {
    "path": ("path", "file", "filename", "file_name", "filepath", "file_path", "image"),
    "image": ("image", "images", "img", "imgs", "x", "input_image", "data", "pixels"),
    "label": ("label", "class", "target", "y", "fine_label"),
    "labels": ("labels", "tags"),
    "caption": ("caption", "text"),
    "boxes": ("boxes", "bboxes"),
    "mask": ("mask", "mask_path"),
}


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
