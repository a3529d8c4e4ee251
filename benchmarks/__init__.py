"""Measurements: what the engine costs (`python -m benchmarks`), what policies would do to recorded runs (`.evidence`),
and what they would do with other values of their thresholds (`.tuning`).

Nothing here is installed; run it from a checkout that is installed editable.
"""
