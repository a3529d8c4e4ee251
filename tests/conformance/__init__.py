"""Runs case files (JSON lines, see docs/conformance.md) through thin adapters over the public API."""
