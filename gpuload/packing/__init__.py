"""Packs a source into shards: plan (numbers only), then workers that carry it out a shard at a time.

`packer.pack` is the whole of it; `foreign.index_shards` indexes shards that others packed.
"""
