"""Requests that read and change the tables."""
