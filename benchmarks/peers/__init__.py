"""Other guards against loops, run as they are over the same recordings: `python -m benchmarks.peers`.

`model` says what a guard sees of a run and what it is asked. Each module that `catalogue` lists drives one package, and
only that module imports it. See docs/peers.md.
"""
