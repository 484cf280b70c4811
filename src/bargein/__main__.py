"""`python -m bargein`: the terminal program."""

from bargein.cli.main import main

raise SystemExit(main())
