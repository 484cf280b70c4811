"""One pipeline for every call: plan, approve, start, run, settle, report.

`pipeline` runs a call of the model, of a tool, or of a program without a session. `words` has every
sentence that the model reads about calls and stops. `record` keeps what is known about a call while
it runs. The package uses contracts and the kernel only; sessions and tools are built on it.
"""
