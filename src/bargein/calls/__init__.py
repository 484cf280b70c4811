"""One pipeline for every call: planned, approved, started, run, settled, told.

`pipeline` runs a call for whoever makes it: the model, a tool, a program without a session. `words`
has every sentence that the model reads about calls and stops. `record` keeps what is known of a
call while it runs. The package knows contracts and the kernel only; sessions, tools and whatever
runs calls of others are built on it.
"""
