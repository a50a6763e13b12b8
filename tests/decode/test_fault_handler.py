"""What becomes of samples that do not decode: the same with either decoder, and whenever a fault is found."""

import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from images import encode, smooth_image
from made_batches import make_batch
from PIL import Image

import gpuload
from gpuload import Augment
from gpuload.decode.faults import FaultHandler
from gpuload.decode.interface import BatchDecodeError, Decoded, Fault
from gpuload.fields.images import GRAY, RGB
from gpuload.read.batch import Batch

AUGMENT = Augment(4, dtype="uint8")
SIZE = 5


def batches(count: int) -> list[Batch]:
    """Batches of five; the images are bytes that say which sample of which batch they are."""
    made = []
    for number in range(count):
        images = [np.array([number, row], np.uint8) for row in range(SIZE)]
        made.append(make_batch(AUGMENT, images, [(8, 8)] * SIZE, seed=number))
    return made


def name_of(image: np.ndarray) -> tuple[int, int]:
    number, row = image.tolist()
    return number, row


class Reporter:
    """A decoder that tells what is broken and goes on, some batches ahead; its pixels name the image."""

    def __init__(self, broken: set[tuple[int, int]], ahead: int = 2) -> None:
        self.broken, self._ahead, self.calls = broken, ahead, 0

    def decode(self, source: Iterator[Batch]) -> Iterator[tuple[Batch, Decoded]]:
        self.calls += 1
        waiting: list[Batch | Exception | None] = []
        while True:
            while len(waiting) <= self._ahead:
                try:
                    waiting.append(next(source, None))
                except gpuload.ShardError as error:  # told when its turn comes, as the native decoder does
                    waiting.append(error)
            if isinstance(batch := waiting.pop(0), Exception):
                raise batch
            if batch is None:
                return
            yield self.decoded(batch)

    def decoded(self, batch: Batch) -> Decoded:
        names = [name_of(image) if len(image) == 2 else (255, 255) for image in batch.image.contents]
        broken = {row: Fault(f"of {name}") for row, name in enumerate(names) if name in self.broken}
        pixels = np.array([(254, 254) if row in broken else name for row, name in enumerate(names)], np.uint8)
        arrays = pixels, torch.from_numpy(pixels + 0)  # an array and a tensor, of two views
        masks = pixels + 0, torch.from_numpy(pixels + 0)
        return Decoded(batch, batch, {"image": arrays, "mask": masks}, faults=broken)

    def close(self) -> None:
        pass


class Raiser(Reporter):
    """A decoder that cannot go on."""

    def decoded(self, batch: Batch) -> Decoded:
        decoded = super().decoded(batch)
        if decoded.faults:
            raise BatchDecodeError(batch, decoded.faults)
        return decoded


def spare(position: int) -> Batch:
    """Of the sample at a position of the stream after batches of SIZE, all of which end at SIZE."""
    return make_batch(AUGMENT, [np.array([200, position - SIZE], np.uint8)], [(8, 8)])


Broken = set[tuple[int, int]]


# By kind: the decoder, and the rows in which a fault is found before it gets the batch. Both meet the others.
KINDS: dict[str, tuple[type[Reporter], Any]] = {
    "reports": (Reporter, ()),
    "raises": (Raiser, ()),
    "screened": (Raiser, range(SIZE)),
    "half screened": (Raiser, range(0, SIZE, 2)),
    "half screened, reports": (Reporter, range(0, SIZE, 2)),  # as where two decoders share a batch
}


def guarded(kind: str, broken: Broken, on_corrupt: Any) -> FaultHandler:
    decoder, screened = KINDS[kind]

    def screen(batch: Batch) -> tuple[Batch, dict[int, Fault]]:
        found = Reporter(broken).decoded(batch).faults
        return batch, {row: fault for row, fault in found.items() if row in screened}

    return FaultHandler(decoder(broken), on_corrupt, screen, {"image": RGB})


def expected(number: int, broken: Broken) -> list[tuple[int, int]]:
    """By the rule in words: the next of the batch that decodes, else the first that follows it."""
    rows = []
    for row in range(SIZE):
        turn = [(number, (row + step) % SIZE) for step in range(SIZE)] + [(200, step) for step in range(1000)]
        rows.append(next(name for name in turn if name not in broken))
    return rows


NAMES = st.tuples(st.integers(0, 5), st.integers(0, SIZE - 1)) | st.tuples(st.just(200), st.integers(0, 3))


@pytest.mark.parametrize("on_corrupt", ["skip", "mark"])
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=50)
@given(broken=st.sets(NAMES, max_size=20))
@example(broken={(2, row) for row in range(SIZE)} | {(200, 0)})
@example(broken={(number, row) for number in (0, 5) for row in range(SIZE)} | {(200, 0), (200, 1), (200, 2)})
def test_a_sample_is_replaced_by_the_next_of_its_batch_or_stays_marked(
    kind: str, on_corrupt: str, broken: Broken
) -> None:
    wanted = batches(6)
    found = list(guarded(kind, broken, on_corrupt).decode(iter(wanted), spare))
    assert [one.asked for one in found] == wanted
    for number, one in enumerate(found):
        assert sorted(one.faults) == sorted(row for batch, row in broken if batch == number)
        assert all(fault.reason == f"of {(number, row)}" for row, fault in one.faults.items())
        names, rows = expected(number, broken), range(SIZE)
        if on_corrupt == "mark":
            assert one.batch is wanted[number]
            rows = sorted({*rows} - {*one.faults})
        else:
            assert list(map(name_of, one.batch.image.contents)) == names and one.batch.stop == wanted[number].stop
        for array in (*one.pictures["image"], *one.pictures["mask"]):
            assert [tuple(array[row].tolist()) for row in rows] == [names[row] for row in rows]


@pytest.mark.parametrize("kind", KINDS)
def test_raise_comes_after_the_batches_before(kind: str) -> None:
    wanted, found = batches(6), []
    with pytest.raises(BatchDecodeError, match="2 of 5 samples do not decode") as caught:
        for one in guarded(kind, {(3, 2), (3, 4), (4, 0)}, "raise").decode(iter(wanted), spare):
            found += [one.batch]
    assert found == wanted[:3]
    assert caught.value.batch is wanted[3] and sorted(caught.value.faults) == [2, 4]


def test_a_decoder_that_goes_on_is_not_asked_twice() -> None:
    """Copying a row costs nothing; decoding the batches in flight again would cost as much as all of them."""
    decoder = Reporter({(number, row) for number in range(6) for row in (1, 3)})
    assert len(list(FaultHandler(decoder, "skip").decode(iter(batches(6)), spare))) == 6
    assert decoder.calls == 1
    for on_corrupt in ("skip", "mark"):  # nor where other samples of the batch were found before
        guard = guarded("half screened, reports", {(3, 1), (3, 2), (4, 0), (4, 1)}, on_corrupt)
        assert len(list(guard.decode(iter(batches(6)), spare))) == 6
        assert guard.decoder.calls == 1  # type: ignore[attr-defined]


class ReadingError(BatchDecodeError):
    """Whenever its batch is looked at, another thread reads one more."""

    source: Iterator[Batch] = iter(())

    def __getattribute__(self, name: str) -> Any:
        if name == "batch":
            next(self.source, None)
        return super().__getattribute__(name)


def test_an_error_is_found_while_another_thread_reads_on() -> None:
    class Late(Reporter):
        def decode(self, source: Iterator[Batch]) -> Iterator[tuple[Batch, Decoded]]:
            if self.calls:
                yield from super().decode(source)
                return
            self.calls += 1
            next(source)
            error = ReadingError(next(source), {1: Fault("bad")})
            error.source = source
            raise error

    wanted = batches(6)
    found = list(FaultHandler(Late(set()), "skip").decode(iter(wanted), spare))
    assert [one.asked for one in found] == wanted
    assert [sorted(one.faults) for one in found] == [[], [1], [], [], [], []]


@pytest.mark.parametrize("kind", KINDS)
def test_without_an_end_of_faults_the_run_ends(kind: str) -> None:
    broken = {(2, row) for row in range(SIZE)} | {(200, step) for step in range(300)}
    with pytest.raises(gpuload.DecodeError, match="no sample of a batch decodes, nor any of the 1,000 after it"):
        list(guarded(kind, broken, "skip").decode(iter(batches(4)), lambda at: spare(SIZE + at % 256)))


@pytest.mark.parametrize("kind", KINDS)
def test_an_error_of_the_source_behind_a_bad_batch_is_not_lost(kind: str) -> None:
    """The decoder has read it ahead when the bad batch makes it begin again."""

    def source() -> Iterator[Batch]:
        yield from batches(2)
        raise gpuload.ShardError("gone")

    broken = {(1, row) for row in range(SIZE)}
    with pytest.raises(gpuload.ShardError, match="gone"):
        list(guarded(kind, broken, "skip").decode(source(), spare))


def test_a_placeholder_that_does_not_decode_ends_the_run() -> None:
    class Refuses(Raiser):
        def decoded(self, batch: Batch) -> Decoded:
            raise BatchDecodeError(batch, {0: Fault("always")})

    with pytest.raises(BatchDecodeError):
        list(FaultHandler(Refuses(set()), "mark").decode(iter(batches(1)), spare))


def test_a_placeholder_has_the_size_of_the_image_and_its_address() -> None:
    class Seen(Reporter):
        def decoded(self, batch: Batch) -> Decoded:
            seen.append(batch)
            return Decoded(batch, batch)

    seen: list[Batch] = []
    rng = np.random.default_rng(0)
    data = [np.frombuffer(encode(smooth_image(rng, 30, 20)), np.uint8) for _ in range(3)]
    batch = make_batch(AUGMENT, data, [(30, 20)] * 3, masks={"mask": data})
    pixels = {"image": RGB, "mask": GRAY}
    handler = FaultHandler(Seen(set()), "mark", lambda batch: (batch, {1: Fault("bad")}), pixels)
    list(handler.decode(iter([batch]), spare))
    (changed,) = seen
    for name, stored in changed.pictures.items():
        black = stored.contents[1]
        assert Image.open(io.BytesIO(black.tobytes())).size == (30, 20)
        assert stored.spans[1].tolist() == [black.ctypes.data, black.nbytes]
        assert stored.contents[0] is data[0] and batch.pictures[name].contents[1] is data[1]
