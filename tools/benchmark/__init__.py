"""What `tools/bench.py` runs: contenders, each in a process of its own, clocks and the table.

A new contender is a function in a file of its own, that opens a loader for a `Work`, and a line in `contenders.py`.
"""
