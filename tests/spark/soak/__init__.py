"""A Spark stream that reads while chaos strikes, and the comparison of its table with the topics."""
