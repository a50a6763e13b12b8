"""The loaders that gpuload is compared with, one file each, configured as their documentation recommends."""
