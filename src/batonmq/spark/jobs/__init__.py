"""`batonmq spark …`: the jobs that ship."""
