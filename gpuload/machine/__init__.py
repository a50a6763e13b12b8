"""The machine under a loader: its GPU and ranks, what a container may use, the packages that work, other processes."""
