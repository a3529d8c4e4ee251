"""What policies would have done in recorded runs, counted: `policyengine backtest` and `policyengine tune`.

A recording travels: `work` cuts the input into units, `judge` replays every run of a unit under every policy and makes
`facts` of it, `tally` adds them up, `local` or `on_ray` does so for all units, `figures` turns the sums into rates with
intervals, `report` and its forms show them.
"""
