"""Where extensions come from, and whether they keep the contract.

Knows: built-in extensions, installed packages, drop-in folders, the registration checks.
Must not know: policies, runs, what any extension decides.
"""
