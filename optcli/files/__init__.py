"""Files as they are read and written safely, digests of them, and modules by name."""
