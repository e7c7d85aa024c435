"""The push consumer: assignment, pulling, handling, retries."""
