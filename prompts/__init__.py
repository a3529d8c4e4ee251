"""Templates of every message the engine and the built-in extensions send, as `<language>/<kind>.txt`.

They are data, read by `policyengine.templates`; no guard ever compares a text. A policy's `prompts:` directories come
before this one.
"""
