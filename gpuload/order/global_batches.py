"""How an epoch is cut into global batches, and a global batch into the parts of the ranks."""


def count_batches(samples: int, global_batch_size: int, drop_last: bool) -> int:
    """Batches that every rank gets out of `samples`: 7 samples in batches of 2 are 3 with drop_last, else 4."""
    return samples // global_batch_size if drop_last else -(-samples // global_batch_size)


def rank_part(start: int, stop: int, rank: int, world_size: int) -> tuple[int, int]:
    """The positions of global batch [start, stop) that are `rank`'s: an even, contiguous division.

    The first ranks take the remainder: 5 samples over 3 ranks are [0, 2), [2, 4), [4, 5). Of a short last batch, a rank
    can get no sample.
    """
    share, rest = divmod(stop - start, world_size)
    first = start + rank * share + min(rank, rest)
    return first, first + share + (rank < rest)
