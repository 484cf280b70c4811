"""A whole world from one seed: users, a model, tools, a disk, and the real engine between them.

`plan` describes everything in advance as plain data, `world` lives it, and `record` writes down
what was seen and checks the laws. Use it through `bargein.testing.simulate`.
"""
