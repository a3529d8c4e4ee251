"""Shipped policies: `default`, `cautious`, `unattended`. Each file says when to use it."""
