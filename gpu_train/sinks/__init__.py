"""Destinations outside: a folder on another disk, S3, GCS, Hugging Face; what is replicated there, and back again.

`objects` is what all kinds of sink can do.
"""
