"""What every adapter for another framework shares, and `Guard` for loops written by hand.

`host` says what a host can do, `table` lists the known ones, `able` refuses policies that want more of it. `core` is
the state machine that all adapters drive, `closed` makes their own failures refusals. `guard` is the shortest way in.
An adapter is a module of its own beside these and imports the framework it adapts; nothing here does.
"""
