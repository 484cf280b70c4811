"""The rules of `decide`, by what they are about. Each is a pure function of state and command."""
