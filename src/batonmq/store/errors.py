"""Errors of a store as a whole; an error of one request is a status (`results.py`)."""

from __future__ import annotations


class StoreError(Exception):
    """The store cannot be opened or used so; the message says which file and why."""


class StoreLocked(StoreError):
    """Another process, or another store of this process, has the directory open."""


class OffsetGap(StoreError):
    """Raw bytes that do not continue the commit log where it ends."""
