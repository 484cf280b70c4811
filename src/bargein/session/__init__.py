"""The engine: sessions, inboxes, turns. Knows models, tools and stores by contract only."""
