"""Errors of the device, which no image is to blame for."""

import re

from gpuload.errors import DeviceError

# Of CUDA's runtime and driver ("CUDA runtime API error cudaErrorMemoryAllocation (2): out of memory"), of nvJPEG's and
# nvImageCodec's allocators, and of the host's.
_MEMORY = re.compile("out of memory|MemoryAllocation|OUT_OF_MEMORY|ALLOCATOR_FAILURE|bad_alloc|[Ff]ailed to allocate")
_DEVICE = re.compile("CUDA (runtime|driver) API error|CUDA error|cudaError|CUDA_ERROR")


def find_device_fault(error: RuntimeError, device_id: int | None) -> DeviceError | None:
    """The user's error where memory or the device failed; None where an image may be to blame.

    Without it such a failure would be explained by the first image that the CPU decodes differently.
    """
    said = str(error)
    device = "the CPU" if device_id is None else f"cuda:{device_id}"
    (line,) = [found for found in said.splitlines() if _MEMORY.search(found) or _DEVICE.search(found)][:1] or [""]
    if _MEMORY.search(said):
        return DeviceError(
            f"{device}: DALI ran out of memory ({line.strip()}). Use a smaller batch_size or prefetch, or free memory "
            "that other processes hold"
        )
    if device_id is not None and _DEVICE.search(said):
        return DeviceError(
            f"{device}: CUDA failed while DALI was decoding ({line.strip()}). An earlier kernel of this process may "
            "have failed; CUDA_LAUNCH_BLOCKING=1 shows which"
        )
    return None
