"""Which tests are to find the changes in which modules."""

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Stage:
    """Modules, by patterns below gpuload/, and the test files of their stage, below tests/."""

    modules: tuple[str, ...]
    tests: tuple[str, ...]

    def paths(self) -> list[str]:
        """The modules' paths from the top of the repository."""
        found = [path for pattern in self.modules for path in sorted((ROOT / "gpuload").glob(pattern))]
        return [str(path.relative_to(ROOT)) for path in found if path.read_text()]


STAGES = {
    "draws": Stage(("draws.py",), ("test_draws.py", "order/test_epoch.py", "augment/test_crops.py")),
    "order": Stage(("order/*.py",), ("order",)),
    "crops": Stage(("augment/*.py",), ("augment",)),
    "fields": Stage(("fields/*.py",), ("fields", "functions", "disk/test_hostile_sets.py", "iterator/test_preview.py")),
    "plan": Stage(("packing/plan.py",), ("packing/test_plan.py", "packing/test_packer.py")),
    "read": Stage(("read/*.py",), ("read", "iterator/test_bucket_loaders.py")),
    "iterator": Stage(("loader/iterator.py",), ("iterator/test_iterator.py", "iterator/test_contract.py")),
}
