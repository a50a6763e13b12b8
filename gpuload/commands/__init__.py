"""The commands of `python -m gpuload`, and the exit codes that they return."""

DONE = 0
FAULTY = 1
WRONG = 2
REJECTED = 3
BROKEN = 70
STOPPED = 130
