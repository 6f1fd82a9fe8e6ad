"""The bench: fetching a host, a test checkpoint, and the life of a server under test."""
