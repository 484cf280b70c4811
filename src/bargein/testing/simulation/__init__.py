"""A whole world from one seed: users, a model, tools, a disk, and the real engine between them.

`plan` decides everything beforehand as plain data; `world` lives it; `record` writes down what was
seen and holds it to the laws. `bargein.testing.simulate` is the door.
"""
