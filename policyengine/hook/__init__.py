"""One event of a coding agent's hooks, answered by a process of its own: `policyengine hook HOST`.

`entry` is the process: it reads the event, and whatever fails there it answers so that nothing runs unjudged.
`dialects` says how the hosts spell events and answers, `session` what an event means to a run, `engine` is the least
that decides, `compiled` keeps a loaded policy for the next process, `verb` puts them together. `settings` and `doctor`
set a host up and look at how it is set up; only they may import what takes time.
"""
