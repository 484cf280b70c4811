"""The engine: sessions, their inboxes and turns. Knows models, tools and stores by contract only."""
