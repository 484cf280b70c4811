"""The rules of `decide`, by subject. Each is a pure function of state and command."""
