"""Recorded runs as data: one typed form, one reader per source format."""
