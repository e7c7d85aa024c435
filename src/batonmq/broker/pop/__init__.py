"""Pop consumption: the broker chooses queues, hides what it hands out, and brings back what is not
acknowledged."""
