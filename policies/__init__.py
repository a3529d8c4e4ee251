"""Shipped policies: `default`, `cautious`, `unattended`, the rungs of a rollout, and other systems' rules in `peers/`.

Each file says when to use it.
"""
