"""Static topics: requests about logical queues become requests about physical ones, here or elsewhere."""
