"""Starts one of our small programs in its own interpreter: `python -I child.py NAME`.

This file is run, not imported. It loads the package from its own directory, whatever the
interpreter's path says, so that both ends of a link have the same version.
"""

import os
import sys
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location


def main() -> None:
    package = os.path.join(
        os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "__init__.py"
    )
    spec = spec_from_file_location("bargein", package)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["bargein"] = module_from_spec(spec)
    spec.loader.exec_module(module)
    import_module(f"bargein.tools.{sys.argv[1]}").main()


if __name__ == "__main__":
    main()
