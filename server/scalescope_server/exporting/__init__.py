"""A run as a file: the tables of an extract as JSON lines, CSV or Parquet, written as they are read."""
