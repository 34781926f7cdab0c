"""Zarr v3 shards (`sharding_indexed`, index at the end): written in one pass, read by range."""
