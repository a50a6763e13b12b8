"""What of the facts is worth a look first."""

from typing import Any

from gpuload.counted import counted

_IMBALANCE = 20  # times as many samples in the largest class as in the smallest


def find_findings(facts: dict[str, Any]) -> list[dict[str, str]]:
    """Each with a level (bad, look or good), a text, and the name of the section that has more; the worst first."""
    found: list[dict[str, str]] = []

    def add(level: str, text: str, section: str) -> None:
        found.append({"level": level, "text": text, "section": section})

    _of_duplicates(facts["duplicates"], facts, add)
    for entry in facts["undecodable"]:
        if entry["count"]:
            add("bad", f"{counted(entry['count'], 'image')} of {entry['split']} not decodable", "rejected")
    rejected = sum(entry["rejected"] for entry in facts["rejected"])
    if rejected:
        add("look", f"{counted(rejected, 'image')} rejected when the set was packed", "rejected")
    for table in facts["classes"]:
        _of_classes(table, add)
    _of_training(facts["training"], add)
    order = {"bad": 0, "look": 1, "good": 2}
    return sorted(found, key=lambda entry: order[entry["level"]])


def _of_duplicates(found: dict[str, Any], facts: dict[str, Any], add: Any) -> None:
    for entry in found["leaked"]:
        if entry["images"]:
            add(
                "bad",
                f"{counted(entry['images'], 'image')} of {entry['split']} also in the training set",
                "duplicates",
            )
    if found["between_splits"] and not any(entry["images"] for entry in found["leaked"]):
        add("bad", f"{counted(found['between_splits'], 'group')} of alike images in several splits", "duplicates")
    if found["labels_differ"]:
        add("bad", f"{counted(found['labels_differ'], 'group')} of alike images with different labels", "duplicates")
    if found["images"]:
        add("look", f"{counted(found['images'], 'duplicate')}, exact or nearly so", "duplicates")
    elif len(facts["splits"]) > 1:
        add("good", "No image was found twice, within a split or between splits", "duplicates")
    else:
        add("good", "No image was found twice", "duplicates")


def _of_classes(table: dict[str, Any], add: Any) -> None:
    of_field = "" if table["field"] == "label" else f" of {table['field']}"
    for entry in table["missing"]:
        level = "look" if entry["count"] < table["classes"] else "bad"
        add(level, f"{counted(entry['count'], 'class', 'classes')}{of_field} missing in {entry['split']}", "classes")
    if table["smallest"] and table["largest"] >= _IMBALANCE * table["smallest"]:
        ratio = table["largest"] / table["smallest"]
        add("look", f"The largest class{of_field} has {ratio:,.0f} times the samples of the smallest", "classes")


def _of_training(training: dict[str, Any], add: Any) -> None:
    mixed = training["mixing"]
    if mixed["is_poor"]:
        add("bad", f"Batches hold {mixed['classes_in_batch']:.1f} classes, a full shuffle would give "
            f"{mixed['expected_classes']:.1f}: the shards are sorted", "mixing")  # fmt: skip
    elif mixed["classes_in_batch"] is not None:
        add("good", f"Batches of {mixed['batch_size']} hold {mixed['classes_in_batch']:.1f} classes on average; a full "
            f"shuffle gives {mixed['expected_classes']:.1f}", "mixing")  # fmt: skip
