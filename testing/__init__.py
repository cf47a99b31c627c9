"""The case matrix and what runs it."""
