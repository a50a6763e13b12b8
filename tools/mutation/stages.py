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
    "draws": Stage(
        ("draws.py",), ("test_draws.py", "order/test_epoch.py", "order/test_drawn.py", "augment/test_crops.py")
    ),
    "order": Stage(
        ("order/*.py",),
        ("order", "iterator/test_sampling.py", "iterator/test_bucket_loaders.py", "iterator/test_laned_epochs.py"),
    ),
    "crops": Stage(("augment/crops.py",), ("augment/test_crops.py", "augment/test_augment.py")),
    "fields": Stage(
        ("fields/*.py",),
        (
            "fields",
            "packing/run/test_names_and_boxes.py",
            "sources/test_labels_that_do_not_fit.py",
            "augment/test_cover.py",
            "functions/test_adapters.py",
            "functions/test_function.py",
            "read/test_damaged_index.py",
            "iterator/test_bucket_loaders.py",
        ),
    ),
    "plan": Stage(("packing/run/plan.py",), ("packing/run/test_plan.py", "packing/run/test_packer.py")),
    "read": Stage(
        ("read/*.py",),
        (
            "read",
            "iterator/test_bucket_loaders.py",
            "store/test_urgent_shards.py",
            "store/test_in_memory.py",
            "store/test_partial_index.py",
        ),
    ),
    "iterator": Stage(
        ("loader/iterator.py",),
        (
            "iterator/test_iterator.py",
            "iterator/test_misuse.py",
            "iterator/test_contract.py",
            "iterator/test_sampling.py",
            "iterator/test_corrupt.py",
            "iterator/test_preview.py",
            "order/test_mixedness.py",
            "test_arguments.py",
        ),
    ),
}
