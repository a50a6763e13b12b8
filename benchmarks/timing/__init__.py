"""The parts of `benchmarks/bench.py`: the contenders, their processes, the measurements and the table.

To add a contender, write a function in a file in `peers/` that opens a loader for a `Work`, and name it in
`contenders.py`.
"""
