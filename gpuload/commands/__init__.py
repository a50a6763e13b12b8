"""The commands of `python -m gpuload`, and the exit codes that they return."""

DONE, FAULTY, WRONG, REJECTED, BROKEN, STOPPED = 0, 1, 2, 3, 70, 130
