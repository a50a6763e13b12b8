"""Epochs of a set at a URL in a process of its own, without decoding, of which each part of the index is fetched when it
is needed: python read_remote.py URL CACHE CACHE_SIZE EPOCHS"""

import sys
import zlib

import gpuload
from gpuload.disk import fetch
from gpuload.read import batches

if __name__ == "__main__":
    url, cache, size, epochs = sys.argv[1:]
    fetch.WHOLE_BYTES = 0
    batches._READ_AT_ONCE = 1  # else one read takes the whole of so small a set
    dataset = gpuload.Dataset(url, cache, size)
    for _ in range(int(epochs)):
        print("begins", flush=True)
        with gpuload.DaliIterator(
            dataset,
            4,
            augment=gpuload.Augment(8),
            fields=("index",),
            output="numpy",
            device="cpu",
            drop_last=False,
            shuffle=gpuload.Shuffle(window=1),
        ) as loader:
            found = 0
            for (index,) in loader:
                found = zlib.crc32(index.tobytes(), found)
            # What lies in the cache is what was packed, whatever has happened to those that wrote it.
        print(found, flush=True)
