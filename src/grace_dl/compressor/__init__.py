"""Compression methods: pure functions from a tensor to what is sent. One file a method."""
