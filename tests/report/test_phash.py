"""Perceptual hashes, and the search for those that are close."""

import io

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from images import encode
from PIL import Image
from report_sets import textured

from gpuload.report.pixels import close_pairs, join_groups, perceptual_hashes


def pairs_of(hashes: np.ndarray, radius: int) -> np.ndarray:
    """Each pair once."""
    parts = [np.empty((0, 2), np.int64), *close_pairs(hashes, radius)]
    assert all(len(part) <= len(hashes) for part in parts)
    return np.unique(np.sort(np.concatenate(parts), axis=1), axis=0)


@settings(max_examples=60)
@given(st.integers(0, 2**32), st.integers(0, 200), st.integers(0, 8))
def test_all_close_pairs_are_found(seed: int, count: int, radius: int) -> None:
    """As by comparing each with each. Half of the hashes are others with some bits changed."""
    rng = np.random.default_rng(seed)
    hashes = rng.integers(0, 2**64, count, np.uint64)
    for row in range(count // 2):
        for bit in rng.integers(0, 64, rng.integers(0, 7)):
            hashes[row] ^= np.uint64(1) << np.uint64(bit)
        hashes[count - 1 - row] = hashes[row] ^ (np.uint64(1) << np.uint64(rng.integers(0, 64)))
    hashes = np.unique(hashes)
    distance = [[bin(int(a ^ b)).count("1") for b in hashes] for a in hashes]
    wanted = np.argwhere(np.triu(np.reshape(distance, (len(hashes), len(hashes))) <= radius, 1))
    np.testing.assert_array_equal(pairs_of(hashes, radius), wanted)


@given(st.integers(0, 2**32), st.integers(1, 60), st.integers(0, 60))
def test_groups_are_connected_components(seed: int, count: int, pairs: int) -> None:
    edges = np.random.default_rng(seed).integers(0, count, (pairs, 2))
    root = list(range(count))
    for _ in range(count):
        for one, other in edges.tolist():
            root[one] = root[other] = min(root[one], root[other])
    assert join_groups(np.arange(count), edges).tolist() == root
    first = join_groups(np.arange(count), edges[: pairs // 2])
    assert join_groups(first, edges[pairs // 2 :]).tolist() == root


def test_a_search_among_many_is_not_quadratic() -> None:
    """A million hashes, of which each with each would be 500 billion pairs; all in one band are cut off."""
    rng = np.random.default_rng(0)
    hashes = np.unique(rng.integers(0, 2**64, 20_000, np.uint64))
    near = hashes[:500] ^ np.uint64(0b1011)
    assert len(pairs_of(np.unique(np.concatenate([hashes, near])), 4)) == 500


def gray(image: Image.Image) -> np.ndarray:
    return np.asarray(image.convert("L").resize((32, 32), Image.Resampling.BOX), np.float32)[None]


def test_hashes_of_changed_images_are_close() -> None:
    def distance(one: Image.Image, other: Image.Image) -> int:
        return bin(int(perceptual_hashes(gray(one))[0] ^ perceptual_hashes(gray(other))[0])).count("1")

    for seed in range(20):
        image = textured(seed, 240, 180)
        small = Image.open(io.BytesIO(encode(image.resize((120, 90)), quality=60)))
        assert distance(image, small) <= 4
        assert distance(image, image.point(lambda v: round(v * 0.9 + 10))) <= 4
        assert distance(image, textured(seed + 100, 240, 180)) > 12
        assert distance(image, image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)) > 12
