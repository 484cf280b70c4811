"""`python -m bargein`: the terminal program."""

try:
    from bargein.cli.main import main
except KeyboardInterrupt:
    raise SystemExit(130) from None

raise SystemExit(main())
