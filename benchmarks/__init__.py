"""Measurements: what the engine costs (`python -m benchmarks`), what policies would do to recorded runs (`.evidence`).

Nothing here is installed; run it from a checkout that is installed editable.
"""
