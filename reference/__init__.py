"""NumPy reference: what every backend is compared with."""
