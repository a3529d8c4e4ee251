"""Searches for inputs that break what must hold for every input: `python -m benchmarks.fuzz`.

A target is a module with `generate(source)`, which makes a case, and `check(case)`, which raises where one is broken.
"""
