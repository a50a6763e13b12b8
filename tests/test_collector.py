"""Pausing the garbage collector restores its earlier state."""

import gc

import pytest

from gpuload.machine.installed import paused_collector


@pytest.mark.parametrize("was_on", [True, False])
def test_it_is_off_inside_and_restored_afterwards(was_on: bool) -> None:
    before = gc.isenabled()
    try:
        (gc.enable if was_on else gc.disable)()
        with pytest.raises(ValueError, match="inside"), paused_collector():
            assert not gc.isenabled()
            with paused_collector():
                pass
            assert not gc.isenabled()
            raise ValueError("inside")
        assert gc.isenabled() == was_on
    finally:
        (gc.enable if before else gc.disable)()
