"""Gives plain `pytest` what the runner under Bazel gives every target."""

pytest_plugins = ["testing.plugin"]
