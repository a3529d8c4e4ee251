"""What policies would have done in recorded runs, counted: `policyengine backtest` and `policyengine tune`.

A recording travels: `work` cuts the input into units, `judge` replays every run of a unit under every policy and makes
`facts` of it, `tally` adds them up, `local` or `on_ray` does so for all units, `merge` puts them together and `resume`
keeps them, `figures` turns the sums into rates with intervals, `grids` and `charts` show them in `markdown` and `html`,
beside each `timeline` of a sample. `tune` does all of this for the candidates of `sweep`, and chooses by `front`.
"""
