"""Control of a running engine over a unix socket: one JSON line asks, one answers.

Knows: that `place` is the file of the socket, `wire` the lines, `server` the engine's side, `client` the operator's.
Must not know: verbs, how an answer is shown.
"""
