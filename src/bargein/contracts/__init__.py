"""The data and Protocols through which the parts of Bargein talk to each other. No I/O.

Import from the modules (`bargein.contracts.model`, ...): each describes one seam.
"""
