"""The report on a packed shard, which outlives the process that packed it."""

import json
from collections import Counter
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

from gpuload.disk import ShardInfo


@dataclass(frozen=True)
class ShardReport:
    """The report on a shard, small enough for the parent to hold one for each shard.

    info: None if every sample was rejected, in which case there is no file.
    rejected: of each sample its row in the listing, its name, the reason, and whether it was skipped on request.
    kinds: number of images by `StoredImage.kind`. extensions: of the stored images.
    width, height, image_bytes: the largest of the stored images, in pixels and bytes.
    histogram: int64 (256 C,), exact counts of the values of each of C channels over the `measured` images; (0,) where
        these are not uint8.
    read_bytes: bytes of the images read from the source.
    remarks: counts by a sentence for the user, see `Kind.remarks`.
    """

    info: ShardInfo | None
    rejected: tuple[tuple[int, str, str, bool], ...]
    kinds: Counter[str]
    extensions: tuple[str, ...]
    width: int
    height: int
    image_bytes: int
    histogram: npt.NDArray[np.int64]
    measured: int
    read_bytes: int
    remarks: Counter[str]

    def to_json(self) -> str:
        return json.dumps(
            {
                **asdict(self),
                "kinds": dict(self.kinds),
                "remarks": dict(self.remarks),
                "histogram": self.histogram.tolist(),
            }
        )

    @classmethod
    def from_json(cls, text: str) -> "ShardReport":
        found = json.loads(text)
        return cls(
            **{
                **found,
                "info": found["info"] and ShardInfo(**found["info"]),
                "rejected": tuple((row, name, reason, asked) for row, name, reason, asked in found["rejected"]),
                "kinds": Counter(found["kinds"]),
                "remarks": Counter(found["remarks"]),
                "extensions": tuple(found["extensions"]),
                "histogram": np.array(found["histogram"], np.int64),
            }
        )
