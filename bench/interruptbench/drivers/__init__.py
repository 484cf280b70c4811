"""One driver a system: a script that runs in that system's own environment."""
