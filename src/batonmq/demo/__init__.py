"""`batonmq demo`: a cluster, a load, a kill, and a report."""
