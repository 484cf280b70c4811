"""An agent runtime that listens while it works."""

__version__ = "0.1.0"
