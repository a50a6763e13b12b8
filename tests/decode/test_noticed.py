"""The table in docs/lab/decode.md of which decoder notices which damage is what is measured."""

import noticed

FILES = 3


def cells(table: str) -> dict[tuple[str, str], str]:
    """By row and column."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    return {(row[0], column): cell for row in rows[2:] for column, cell in zip(rows[0][1:], row[1:], strict=True)}


def test_the_table_is_what_is_measured() -> None:
    """On few files: what all decoders of the table refuse, or none, they refuse, or not, in each of them."""
    written, measured = cells(noticed.written_table()), cells(noticed.make_table(noticed.measure(FILES), FILES))
    assert written.keys() == measured.keys() and len(written) == len(noticed.DAMAGE) * 6
    differing = {place: (cell, measured[place]) for place, cell in written.items() if cell != "some"}
    assert {place: pair for place, pair in differing.items() if pair[0] != pair[1]} == {}
    assert set(written.values()) == {"all", "some", "none"}
