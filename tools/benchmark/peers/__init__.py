"""The loaders that gpuload is measured against, a file each, in the configuration that its documentation advises."""
