"""What the commands of `python -m gpuload` return."""

DONE, FAULTY, WRONG, REJECTED, STOPPED = 0, 1, 2, 3, 130
