"""Tools to test what is built on Bargein, shipped with it and used by its own tests.

Nothing here is imported by the product. Import from the module that holds what you need, for
example `from bargein.testing.fault_server import FaultServer`.
"""
