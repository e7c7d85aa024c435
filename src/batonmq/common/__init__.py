"""What every room may use: clock, configuration, logging, metrics, files."""
