"""InterruptBench: how well agents stop, measured side by side. docs/interruptbench.md explains
it."""
