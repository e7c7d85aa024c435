"""Part: the exporter of metrics, and what tools ask about rates and lag."""
