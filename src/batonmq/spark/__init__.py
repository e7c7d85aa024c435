"""The PySpark data source over topics."""
