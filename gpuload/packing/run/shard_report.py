"""What became of a shard: numbers that outlive the process that packed it."""

import json
from collections import Counter
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

from gpuload.disk import ShardInfo


@dataclass(frozen=True)
class ShardReport:
    """What became of a shard; numbers only, so that the parent can hold one for each.

    info: None if every sample was rejected; there is no file then.
    rejected: of each, its row in the listing, name, reason, and whether leaving it out was asked for.
    kinds: count of each `StoredImage.kind`. extensions: of the stored images.
    histogram: int64 (768,), exact counts over the `measured` images.
    remarks: counts by a sentence for the user, as `Kind.remarks` gives them.
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
