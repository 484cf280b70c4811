"""Models that stop when told."""
