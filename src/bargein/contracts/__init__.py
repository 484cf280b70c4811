"""Plain data and Protocols that the parts of Bargein meet at. No I/O, no behaviour.

Import from the modules (`bargein.contracts.model`, ...): each is one seam.
"""
