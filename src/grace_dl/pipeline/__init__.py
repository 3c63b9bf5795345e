"""Compression and exchange of gradient buckets, in the same order on all ranks."""
