"""The jobs of `batonmq spark …`."""
