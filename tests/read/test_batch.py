"""Rows of a batch: of arrays, lists and mappings, with all that was drawn for them."""

import numpy as np

from gpuload.fields.rows import take
from gpuload.read.batch import Batch, EncodedBatch, MemberViews

ROWS = np.array([2, 0, 2])


def members() -> MemberViews:
    """Of two shards: 1 2, 7, 3."""
    shards = [np.array([1, 2, 3], np.uint8), np.array([7, 8], np.uint8)]
    return MemberViews(shards, np.array([0, 1, 0]), np.array([0, 0, 2]), np.array([2, 1, 3]))


def test_rows_of_members_are_views() -> None:
    found = take(members(), ROWS)
    assert isinstance(found, MemberViews)
    assert [view.tolist() for view in found] == [[3], [1, 2], [3]] == [found[row].tolist() for row in range(3)]


def test_a_batch_keeps_what_was_drawn_for_its_rows() -> None:
    spans = np.array([[64, 2], [80, 1], [66, 5]])
    sizes = np.array([4, 5, 6], np.int32)
    encoded = EncodedBatch(
        np.array([10, 11, 12]), members(), spans, np.array([False, True, False]), sizes, sizes + 1, {"label": sizes}, {}
    )
    keys = np.array([1, 2, 3], np.uint64)
    batch = Batch(
        encoded,
        (["m", "n", "o"],),
        (),
        np.array([0, 1, 2]),
        keys,
        99,
        0.5,
        8,
        0.25,
        bucket=3,
        prepared={"p": [5, 6, 7]},
    )
    part = batch.take(ROWS)
    assert len(part) == 3 and part.encoded.samples.tolist() == [12, 10, 12]
    assert part.encoded.heights.tolist() == [7, 5, 7] and part.encoded.raw.tolist() == [False] * 3
    assert part.encoded.columns["label"].tolist() == [6, 4, 6] and part.masks == (["o", "m", "o"],)
    assert (part.sources.tolist(), part.keys.tolist()) == ([2, 0, 2], [3, 1, 3])
    assert (part.stop, part.read_s, part.image_bytes, part.download_s) == (99, 0.5, 12, 0.25)
    assert (part.bucket, part.prepared) == (3, {"p": [7, 5, 7]})
    assert part.draws(0)[0] == part.draws(0)[2] == batch.draws(0)[2]
