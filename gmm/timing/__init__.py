"""The model of a kernel's time (docs/model.md), for tilings and for `aot`."""
